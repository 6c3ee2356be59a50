-- Longer than a statement of a call may take, where there are tens of millions of rows.
SET LOCAL statement_timeout = 0;

-- What the status counts of the newest fires is read from the index alone.
DROP INDEX occurrence_age;
CREATE INDEX occurrence_age ON occurrence (at_ms, verdict, reason, fires, scheduled_ms);
CREATE INDEX occurrence_skipped ON occurrence (at_ms, job_id, reason, fires, scheduled_ms, until_ms) WHERE verdict = 'skipped';
