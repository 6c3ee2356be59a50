# What the codes of the catalogue say. Keys and placeholders are the same in all files; en is where a text begins.

# The sentence of a code, and what the scheduler says about this one case.
with-detail = { $sentence }：{ $detail }

NOTFOUND_001 = 作业不存在
NOTFOUND_003 = 触发器不存在
NOTFOUND_004 = 任务不存在或已结束
NOTFOUND_005 = 该作业不来自任何文件，或没有这个版本，无法恢复
NOTFOUND_006 = 执行器不存在
NOTFOUND_008 = 令牌不存在
NOTFOUND_009 = 没有人持有该租约
NOTFOUND_010 = 调度器没有这个名称的告警通道
NOTFOUND_011 = 日历或并发组不存在
VALIDATION_001 = 作业、日历或并发组的定义有误
VALIDATION_002 = 分页大小或分页令牌超出范围
VALIDATION_003 = 请求中的一个字段有误
VALIDATION_004 = 批次为空或过大
CONFLICT_001 = 作业正在运行，其策略不允许现在再次运行
CONFLICT_002 = 租约由他人持有，或已丢失
CONFLICT_004 = 另一个进程占用了该执行器标识
CONFLICT_005 = 幂等键已用于其他内容
CONFLICT_007 = 同名令牌已存在
CONFLICT_008 = 这是最后一个管理员令牌，没有它就无人能创建令牌
CONFLICT_009 = 自调用所期望的版本之后，它已被修改
CONFLICT_010 = 主机仍在发送心跳，或仍持有未被声明丢失的任务
CONFLICT_011 = 日历或并发组正在使用中
CONFLICT_012 = 租约已被收回
UNAVAILABLE_001 = 该调度器正在启动或停止
UNAVAILABLE_003 = 数据库无法访问或繁忙
UNAVAILABLE_006 = 数据库无法再写入：磁盘已满或只读
UNAVAILABLE_007 = 等待的请求过多，请重试
AUTH_001 = 调用没有令牌，或令牌未知、已过期或已吊销
AUTH_002 = 令牌的角色不允许此调用
UNEXPECTED_001 = 不应发生的错误，请查看调度器日志
