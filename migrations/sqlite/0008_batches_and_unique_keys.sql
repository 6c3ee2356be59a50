-- Tasks that were submitted together, each with its line; retries stay in the batch.
ALTER TABLE task ADD COLUMN batch TEXT;
ALTER TABLE task ADD COLUMN batch_line BIGINT;
CREATE INDEX task_batch ON task (batch, id) WHERE batch IS NOT NULL;

-- Not twice while one waits or runs. A task whose child has ended (CALLBACK and the terminal states) holds its key no more; its
-- retry takes it over in the transaction of the end.
ALTER TABLE task ADD COLUMN unique_key TEXT;
CREATE UNIQUE INDEX task_unique ON task (unique_key) WHERE unique_key IS NOT NULL AND status IN (1, 2, 3, 4, 9);
