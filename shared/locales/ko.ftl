# What the codes of the catalogue say. Keys and placeholders are the same in all files; en is where a text begins.

# The sentence of a code, and what the scheduler says about this one case.
with-detail = { $sentence }: { $detail }

NOTFOUND_001 = 작업이 존재하지 않습니다
NOTFOUND_003 = 트리거가 존재하지 않습니다
NOTFOUND_004 = 태스크가 존재하지 않거나 이미 끝났습니다
NOTFOUND_005 = 작업이 파일에서 오지 않았거나 해당 버전이 없어 복원할 수 없습니다
NOTFOUND_006 = 러너가 존재하지 않습니다
NOTFOUND_008 = 토큰이 존재하지 않습니다
NOTFOUND_009 = 이 리스를 보유한 사람이 없습니다
NOTFOUND_010 = 스케줄러에 이 이름의 알람 채널이 없습니다
NOTFOUND_011 = 캘린더 또는 동시성 그룹이 존재하지 않습니다
VALIDATION_001 = 작업, 캘린더 또는 동시성 그룹의 정의가 잘못되었습니다
VALIDATION_002 = 페이지 크기 또는 페이지 토큰이 범위를 벗어났습니다
VALIDATION_003 = 요청의 필드가 잘못되었습니다
VALIDATION_004 = 배치가 비어 있거나 너무 큽니다
CONFLICT_001 = 작업이 실행 중이며 정책상 지금은 다시 실행할 수 없습니다
CONFLICT_002 = 다른 사용자가 리스를 보유하고 있거나 리스를 잃었습니다
CONFLICT_004 = 다른 프로세스가 이 러너 ID를 보유하고 있습니다
CONFLICT_005 = 멱등성 키가 다른 내용으로 사용되었습니다
CONFLICT_007 = 이 이름의 토큰이 이미 존재합니다
CONFLICT_008 = 마지막 관리자 토큰입니다. 이것이 없으면 아무도 토큰을 만들 수 없습니다
CONFLICT_009 = 호출이 기대하는 버전 이후에 변경되었습니다
CONFLICT_010 = 호스트가 아직 응답하거나, 손실되었다고 선언되지 않은 태스크를 보유하고 있습니다
CONFLICT_011 = 캘린더 또는 동시성 그룹이 사용 중입니다
CONFLICT_012 = 리스가 회수되었습니다
UNAVAILABLE_001 = 이 스케줄러는 시작 중이거나 중지 중입니다
UNAVAILABLE_003 = 데이터베이스에 연결할 수 없거나 사용량이 많습니다
UNAVAILABLE_006 = 데이터베이스에 더 이상 쓸 수 없습니다: 디스크가 가득 찼거나 읽기 전용입니다
UNAVAILABLE_007 = 대기 중인 요청이 너무 많습니다. 다시 시도하세요
AUTH_001 = 호출에 토큰이 없거나, 알 수 없거나 만료되었거나 취소된 토큰입니다
AUTH_002 = 토큰의 역할이 이 호출을 허용하지 않습니다
UNEXPECTED_001 = 발생해서는 안 되는 오류입니다. 스케줄러 로그를 확인하세요
