-- Timeouts of the scheduler: QUEUED for longer than queue_timeout_ms, DISPATCHED for longer than start_timeout_ms.
ALTER TABLE task ADD COLUMN queue_timeout_ms BIGINT;
ALTER TABLE task ADD COLUMN start_timeout_ms BIGINT;
-- What the runner knows of the end beyond the outcome, JSON.
ALTER TABLE task ADD COLUMN end_detail TEXT;

-- The next one to expire, without a look at tasks that have no such timeout.
CREATE INDEX task_queue_timeout ON task ((eligible_at_ms + queue_timeout_ms)) WHERE status = 2 AND queue_timeout_ms IS NOT NULL;
CREATE INDEX task_start_timeout ON task ((dispatched_at_ms + start_timeout_ms)) WHERE status = 3 AND start_timeout_ms IS NOT NULL;

-- One more reason to terminate. SQLite changes no CHECK in place: a new column takes the place of the old one.
ALTER TABLE task ADD COLUMN reason TEXT CHECK (reason IN ('start_timeout', 'timeout', 'superseded', 'user'));
UPDATE task SET reason = terminating WHERE terminating IS NOT NULL;
ALTER TABLE task DROP COLUMN terminating;
ALTER TABLE task RENAME COLUMN reason TO terminating;
