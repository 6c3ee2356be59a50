-- Of a job with very many fires: those that made no run, or only later.
CREATE INDEX occurrence_unfired ON occurrence (job_id, scheduled_ms, id) WHERE verdict <> 'fired';
-- Stretches, which may reach into a time that begins behind them.
CREATE INDEX occurrence_stretch ON occurrence (job_id, until_ms) WHERE until_ms > scheduled_ms;
-- And runs that ended badly.
CREATE INDEX task_run_unhappy ON task (job_id, scheduled_ms, id) WHERE scheduled_ms IS NOT NULL AND status IN (7, 8, 10);
CREATE INDEX task_job_unhappy ON task (job, id) WHERE status IN (7, 8, 10) AND job IS NOT NULL;
