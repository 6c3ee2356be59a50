-- What was wrong in the job files that a scheduler read at its start: a JSON array of sentences.
ALTER TABLE replica ADD COLUMN job_faults TEXT NOT NULL DEFAULT '[]';

-- Runs of a job by their scheduled time.
CREATE INDEX task_run ON task (job_id, scheduled_ms, id) WHERE scheduled_ms IS NOT NULL;

-- Triggers that need a person.
CREATE INDEX job_trigger_error ON job_trigger (job_id) WHERE phase = 'error';

-- Rises by one with each change.
ALTER TABLE concurrency_group ADD COLUMN version BIGINT NOT NULL DEFAULT 1;
