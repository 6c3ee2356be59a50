-- What a task wants of its output; NULL: the default of the product, and as long as the task.
ALTER TABLE task ADD COLUMN output_max_bytes BIGINT;
ALTER TABLE task ADD COLUMN output_keep_ms BIGINT;
-- The next output to delete, without a look at tasks whose output has no time of its own.
CREATE INDEX task_output_keep ON task ((ended_at_ms + output_keep_ms)) WHERE output_keep_ms IS NOT NULL AND ended_at_ms IS NOT NULL;

-- Of a stream beyond its limit, head and tail are stored: all bytes before stored_bytes + gap_bytes but those of the gap.
ALTER TABLE output ADD COLUMN gap_start BIGINT NOT NULL DEFAULT 0;
ALTER TABLE output ADD COLUMN gap_bytes BIGINT NOT NULL DEFAULT 0;
-- So far all beyond the limit was left out, and nobody will bring it.
UPDATE output SET gap_start = stored_bytes, gap_bytes = total_bytes - stored_bytes WHERE total_bytes > stored_bytes;
-- When these bytes were seen first. NULL: stored before this was known.
ALTER TABLE output_chunk ADD COLUMN seen_at_ms BIGINT;
