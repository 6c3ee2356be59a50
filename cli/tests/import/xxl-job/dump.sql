-- MySQL dump 10.13  Distrib 8.0.36, for Linux (x86_64)
--
-- Host: localhost    Database: xxl_job
/*!40101 SET @OLD_CHARACTER_SET_CLIENT=@@CHARACTER_SET_CLIENT */;
/*!50503 SET NAMES utf8mb4 */;

DROP TABLE IF EXISTS `xxl_job_group`;
CREATE TABLE `xxl_job_group` (
  `id` int NOT NULL AUTO_INCREMENT,
  `app_name` varchar(64) NOT NULL COMMENT '执行器AppName',
  `title` varchar(64) NOT NULL COMMENT '执行器名称',
  `address_type` tinyint NOT NULL DEFAULT '0' COMMENT '执行器地址类型：0=自动注册、1=手动录入',
  `address_list` text COMMENT '执行器地址列表，多地址逗号分隔',
  `update_time` datetime DEFAULT NULL,
  PRIMARY KEY (`id`)
) ENGINE=InnoDB AUTO_INCREMENT=3 DEFAULT CHARSET=utf8mb4;

LOCK TABLES `xxl_job_group` WRITE;
/*!40000 ALTER TABLE `xxl_job_group` DISABLE KEYS */;
INSERT INTO `xxl_job_group` VALUES (1,'xxl-job-executor-sample','示例执行器',0,NULL,'2024-11-03 22:21:31'),(2,'billing','账单; (prod)',1,'http://10.0.0.7:9999/,http://10.0.0.8:9999/','2026-01-02 03:04:05');
/*!40000 ALTER TABLE `xxl_job_group` ENABLE KEYS */;
UNLOCK TABLES;

DROP TABLE IF EXISTS `xxl_job_info`;
/*!50503 SET character_set_client = utf8mb4 */;
CREATE TABLE `xxl_job_info` (
  `id` int NOT NULL AUTO_INCREMENT,
  `job_group` int NOT NULL COMMENT '执行器主键ID',
  `job_desc` varchar(255) NOT NULL,
  `add_time` datetime DEFAULT NULL,
  `update_time` datetime DEFAULT NULL,
  `author` varchar(64) DEFAULT NULL COMMENT '作者',
  `alarm_email` varchar(255) DEFAULT NULL COMMENT '报警邮件',
  `schedule_type` varchar(50) NOT NULL DEFAULT 'NONE' COMMENT '调度类型',
  `schedule_conf` varchar(128) DEFAULT NULL COMMENT '调度配置，值含义取决于调度类型',
  `misfire_strategy` varchar(50) NOT NULL DEFAULT 'DO_NOTHING' COMMENT '调度过期策略',
  `executor_route_strategy` varchar(50) DEFAULT NULL COMMENT '执行器路由策略',
  `executor_handler` varchar(255) DEFAULT NULL COMMENT '执行器任务handler',
  `executor_param` varchar(512) DEFAULT NULL COMMENT '执行器任务参数',
  `executor_block_strategy` varchar(50) DEFAULT NULL COMMENT '阻塞处理策略',
  `executor_timeout` int NOT NULL DEFAULT '0' COMMENT '任务执行超时时间，单位秒',
  `executor_fail_retry_count` int NOT NULL DEFAULT '0' COMMENT '失败重试次数',
  `glue_type` varchar(50) NOT NULL COMMENT 'GLUE类型',
  `glue_source` mediumtext COMMENT 'GLUE源代码',
  `glue_remark` varchar(128) DEFAULT NULL COMMENT 'GLUE备注',
  `glue_updatetime` datetime DEFAULT NULL COMMENT 'GLUE更新时间',
  `child_jobid` varchar(255) DEFAULT NULL COMMENT '子任务ID，多个逗号分隔',
  `trigger_status` tinyint NOT NULL DEFAULT '0' COMMENT '调度状态：0-停止，1-运行',
  `trigger_last_time` bigint NOT NULL DEFAULT '0' COMMENT '上次调度时间',
  `trigger_next_time` bigint NOT NULL DEFAULT '0' COMMENT '下次调度时间',
  PRIMARY KEY (`id`)
) ENGINE=InnoDB AUTO_INCREMENT=9 DEFAULT CHARSET=utf8mb4;

LOCK TABLES `xxl_job_info` WRITE;
INSERT INTO `xxl_job_info` VALUES (1,1,'测试任务1','2018-11-03 22:21:31','2018-11-03 22:21:31','XXL','','CRON','0 0 0 * * ? *','DO_NOTHING','FIRST','demoJobHandler','','SERIAL_EXECUTION',0,0,'BEAN','','GLUE代码初始化','2018-11-03 22:21:31','2',0,0,0),
(2,2,'Invoices of the night (it\'s \"final\")','2026-01-02 03:04:05','2026-01-02 03:04:05','ann','ops@example.org,ann@example.org','CRON','0 30 2 ? * MON-FRI','FIRE_ONCE_NOW','ROUND','','2026-01 --all','DISCARD_LATER',1800,2,'GLUE_SHELL','#!/bin/bash\r\necho \"xxl-job: hello shell\"\r\n\r\necho \"脚本位置：$0\"\necho \'it\'\'s; $1\'\t# \\n stays\nexit 0\n',NULL,'2026-01-02 03:04:05','3, 4,99',1,1700000000000,1700000060000),
(3,2,'每日对账','2026-01-02 03:04:05',NULL,'bob',NULL,'NONE','','DO_NOTHING','SHARDING_BROADCAST','','shard','COVER_EARLY',0,0,'GLUE_PYTHON','import sys\nprint(sys.argv[1:], \"100%\")\n','',NULL,'',1,0,0);
INSERT INTO `xxl_job_info` VALUES (4,2,'Poll the queue',NULL,NULL,'bob','','FIX_RATE','30','DO_NOTHING','CONSISTENT_HASH','','','SERIAL_EXECUTION',0,0,'GLUE_NODEJS','console.log(process.argv.slice(2))',NULL,NULL,NULL,0,0,0),(5,2,'Both days',NULL,NULL,'bob','','CRON','0 0 12 1 * MON','DO_NOTHING','FIRST','','','SERIAL_EXECUTION',0,0,'GLUE_SHELL','true',NULL,NULL,NULL,1,0,0),(6,2,'Groovy',NULL,NULL,'bob','','NONE','','DO_NOTHING','FIRST','','','SERIAL_EXECUTION',0,0,'GLUE_GROOVY','class A {}',NULL,NULL,NULL,1,0,0);
UNLOCK TABLES;

CREATE TABLE `xxl_job_log` (`id` bigint NOT NULL, `trigger_msg` text);
INSERT INTO `xxl_job_log` VALUES (1,'INSERT INTO `xxl_job_info` VALUES (7); -- not me');
-- Dump completed
