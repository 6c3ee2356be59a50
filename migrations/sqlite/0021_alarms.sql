-- Alarms of jobs. What the ends of runs and the clock mean for them, and the outbox of what is to be told.

-- Of jobs with alarms only.
CREATE TABLE job_health (
  job_id BIGINT PRIMARY KEY,
  -- Runs that have failed since the last success.
  failures BIGINT NOT NULL DEFAULT 0,
  success_ms BIGINT,
  -- The latest scheduled time of a run that succeeded.
  success_scheduled_ms BIGINT,
  -- Somebody was told that it fails or is late, and not yet that it works again.
  trouble BOOLEAN NOT NULL DEFAULT FALSE,
  -- There is something that a success has to put right: an alarm that is held back, or a lateness.
  noted BOOLEAN NOT NULL DEFAULT FALSE
);

-- Rules that the clock decides. rule: its key within the job.
CREATE TABLE alarm_watch (
  job_id BIGINT NOT NULL,
  rule TEXT NOT NULL,
  -- What lies before does not count.
  base_ms BIGINT NOT NULL,
  -- Late since then.
  since_ms BIGINT,
  -- When to look at it; NULL for a rule about runs that take long.
  due_ms BIGINT,
  slow_ms BIGINT,
  -- What is wanted, for people.
  words TEXT NOT NULL,
  PRIMARY KEY (job_id, rule)
);
CREATE INDEX alarm_watch_due ON alarm_watch (due_ms) WHERE due_ms IS NOT NULL;
CREATE INDEX alarm_watch_late ON alarm_watch (since_ms) WHERE since_ms IS NOT NULL;
CREATE INDEX alarm_watch_slow ON alarm_watch (job_id) WHERE slow_ms IS NOT NULL;

-- The outbox: one row for each cause and channel, whatever replicas do.
CREATE TABLE alarm (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  cause TEXT NOT NULL,
  channel TEXT NOT NULL,
  kind TEXT NOT NULL,
  -- 0: of no one job.
  job_id BIGINT NOT NULL,
  job TEXT NOT NULL,
  rule TEXT NOT NULL,
  -- JSON.
  notice TEXT NOT NULL,
  -- held: until the silence of its rule is over; silenced: it was put right before.
  status TEXT NOT NULL CHECK (status IN ('pending', 'held', 'delivered', 'failed', 'silenced')),
  delivery_id TEXT NOT NULL,
  tries BIGINT NOT NULL DEFAULT 0,
  raised_at_ms BIGINT NOT NULL,
  -- From when on the silence of its rule counts.
  window_ms BIGINT NOT NULL,
  next_at_ms BIGINT NOT NULL,
  settled_at_ms BIGINT,
  last_error TEXT NOT NULL DEFAULT '',
  acknowledged_by TEXT,
  acknowledged_at_ms BIGINT,
  UNIQUE (cause, channel)
);
CREATE INDEX alarm_due ON alarm (next_at_ms) WHERE status IN ('pending', 'held');
CREATE INDEX alarm_rule ON alarm (job_id, rule, window_ms);
CREATE INDEX alarm_failed ON alarm (id) WHERE status = 'failed' AND acknowledged_at_ms IS NULL;
CREATE INDEX alarm_age ON alarm (raised_at_ms);

-- The version of the definition whose alarms are watched.
ALTER TABLE job ADD COLUMN watched_version BIGINT NOT NULL DEFAULT 0;
CREATE INDEX job_unwatched ON job (id) WHERE watched_version <> version;
