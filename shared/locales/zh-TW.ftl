# What the codes of the catalogue say. Keys and placeholders are the same in all files; en is where a text begins.

# The sentence of a code, and what the scheduler says about this one case.
with-detail = { $sentence }：{ $detail }

NOTFOUND_001 = 作業不存在
NOTFOUND_003 = 觸發器不存在
NOTFOUND_004 = 任務不存在或已結束
NOTFOUND_005 = 該作業不來自任何檔案，或沒有這個版本，無法還原
NOTFOUND_006 = 執行器不存在
NOTFOUND_008 = 權杖不存在
NOTFOUND_009 = 沒有人持有該租約
NOTFOUND_010 = 排程器沒有這個名稱的告警通道
NOTFOUND_011 = 行事曆或並行群組不存在
VALIDATION_001 = 作業、行事曆或並行群組的定義有誤
VALIDATION_002 = 分頁大小或分頁權杖超出範圍
VALIDATION_003 = 請求中的一個欄位有誤
VALIDATION_004 = 批次為空或過大
CONFLICT_001 = 作業正在執行，其策略不允許現在再次執行
CONFLICT_002 = 租約由他人持有，或已遺失
CONFLICT_004 = 另一個處理程序占用了該執行器識別碼
CONFLICT_005 = 冪等鍵已用於其他內容
CONFLICT_007 = 同名權杖已存在
CONFLICT_008 = 這是最後一個管理員權杖，沒有它就無人能建立權杖
CONFLICT_009 = 自呼叫所期望的版本之後，它已被修改
CONFLICT_010 = 主機仍在傳送心跳，或仍持有未被宣告遺失的任務
CONFLICT_011 = 行事曆或並行群組正在使用中
CONFLICT_012 = 租約已被收回
UNAVAILABLE_001 = 該排程器正在啟動或停止
UNAVAILABLE_003 = 資料庫無法連線或忙碌
UNAVAILABLE_006 = 資料庫無法再寫入：磁碟已滿或唯讀
UNAVAILABLE_007 = 等待的請求過多，請重試
AUTH_001 = 呼叫沒有權杖，或權杖不明、已過期或已撤銷
AUTH_002 = 權杖的角色不允許此呼叫
UNEXPECTED_001 = 不應發生的錯誤，請查看排程器記錄
