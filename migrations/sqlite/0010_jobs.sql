-- Jobs: named definitions that make tasks. A definition is stored as JSON in the shape of the job file; the columns beside it
-- are what the database itself decides by.

CREATE TABLE job (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  name TEXT NOT NULL UNIQUE,
  -- Rises by one with each change of the definition.
  version BIGINT NOT NULL,
  definition TEXT NOT NULL,
  fingerprint TEXT NOT NULL,
  origin TEXT NOT NULL CHECK (origin IN ('code', 'overridden', 'runtime')),
  -- Of an overridden job: what its file says.
  code_definition TEXT,
  code_fingerprint TEXT,
  -- The file, for people.
  source TEXT NOT NULL DEFAULT '',
  lane_id BIGINT NOT NULL,
  -- Runs at once, runs that may wait, and what becomes of more.
  blocking TEXT NOT NULL CHECK (blocking IN ('serial', 'discard_later', 'cover_early', 'concurrent')),
  max_concurrent BIGINT NOT NULL CHECK (max_concurrent >= 1),
  max_waiting BIGINT NOT NULL,
  concurrency_group TEXT,
  paused BOOLEAN NOT NULL DEFAULT FALSE,
  -- NULL: until somebody resumes it.
  paused_until_ms BIGINT,
  paused_by TEXT,
  pause_reason TEXT,
  paused_at_ms BIGINT,
  created_at_ms BIGINT NOT NULL,
  changed_at_ms BIGINT NOT NULL,
  changed_by TEXT NOT NULL
);
CREATE INDEX job_group ON job (concurrency_group) WHERE concurrency_group IS NOT NULL;

-- All definitions that a job ever had, by name: they outlive it.
CREATE TABLE job_version (
  job TEXT NOT NULL,
  job_id BIGINT NOT NULL,
  version BIGINT NOT NULL,
  definition TEXT NOT NULL,
  fingerprint TEXT NOT NULL,
  origin TEXT NOT NULL,
  source TEXT NOT NULL,
  changed_at_ms BIGINT NOT NULL,
  changed_by TEXT NOT NULL,
  reason TEXT NOT NULL,
  PRIMARY KEY (job_id, version)
);
CREATE INDEX job_version_name ON job_version (job, changed_at_ms);

-- Where each trigger stands. judged_ms, next_ms and fires are its cursor; due_ms is when to look at it: next_ms, or the end of
-- its pause, NULL while nothing is due by time.
CREATE TABLE job_trigger (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  job_id BIGINT NOT NULL,
  name TEXT NOT NULL,
  definition TEXT NOT NULL,
  kind TEXT NOT NULL,
  lane_id BIGINT NOT NULL,
  after_job TEXT,
  after_outcome TEXT,
  created_at_ms BIGINT NOT NULL,
  judged_ms BIGINT NOT NULL,
  next_ms BIGINT,
  fires BIGINT NOT NULL DEFAULT 0,
  due_ms BIGINT,
  phase TEXT NOT NULL CHECK (phase IN ('waiting', 'acquired', 'blocked', 'complete', 'error')),
  error TEXT NOT NULL DEFAULT '',
  -- Of fixed_delay: the chain whose end it waits for.
  run_root BIGINT,
  paused BOOLEAN NOT NULL DEFAULT FALSE,
  paused_until_ms BIGINT,
  paused_by TEXT,
  pause_reason TEXT,
  paused_at_ms BIGINT,
  UNIQUE (job_id, name)
);
CREATE INDEX job_trigger_due ON job_trigger (due_ms) WHERE due_ms IS NOT NULL;
CREATE INDEX job_trigger_run ON job_trigger (run_root) WHERE run_root IS NOT NULL;
CREATE INDEX job_trigger_after ON job_trigger (after_job) WHERE after_job IS NOT NULL;

-- The ledger: each expected fire has one verdict. A stretch of fires with one verdict is one row, from scheduled_ms to until_ms.
-- parent_root: the chain of another job after whose end it fired, else 0.
CREATE TABLE occurrence (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  job_id BIGINT NOT NULL,
  -- NULL: somebody asked for it.
  trigger_id BIGINT,
  trigger_name TEXT NOT NULL,
  scheduled_ms BIGINT NOT NULL,
  until_ms BIGINT NOT NULL,
  fires BIGINT NOT NULL DEFAULT 1,
  parent_root BIGINT NOT NULL DEFAULT 0,
  verdict TEXT NOT NULL CHECK (verdict IN ('fired', 'coalesced', 'skipped')),
  reason TEXT NOT NULL DEFAULT '',
  into_ms BIGINT,
  task_id BIGINT,
  -- Of a blocked one: the chain that was in its way.
  blocked_by BIGINT,
  misfired BOOLEAN NOT NULL DEFAULT FALSE,
  at_ms BIGINT NOT NULL,
  UNIQUE (trigger_id, scheduled_ms, parent_root),
  CHECK (verdict <> 'fired' OR task_id IS NOT NULL)
);
CREATE INDEX occurrence_job ON occurrence (job_id, scheduled_ms, id);
CREATE INDEX occurrence_age ON occurrence (at_ms);

-- Who runs: one row for each of the places of a job or of a concurrency group that a chain of tasks has. The key is what keeps two
-- runs of a serial job apart. lost_*: the chain ended without proof that its child is dead; the place stays taken until then.
CREATE TABLE slot (
  resource TEXT NOT NULL,
  n BIGINT NOT NULL,
  root_id BIGINT NOT NULL,
  taken_at_ms BIGINT NOT NULL,
  lost_task_id BIGINT,
  lost_host TEXT,
  lost_slot BIGINT,
  lost_instance TEXT,
  lost_at_ms BIGINT,
  PRIMARY KEY (resource, n)
);
CREATE INDEX slot_root ON slot (root_id);
CREATE INDEX slot_lost ON slot (lost_host) WHERE lost_host IS NOT NULL;

CREATE TABLE calendar (
  name TEXT PRIMARY KEY,
  version BIGINT NOT NULL,
  definition TEXT NOT NULL,
  -- The text of the iCalendar file that the definition names.
  ics TEXT,
  changed_at_ms BIGINT NOT NULL,
  changed_by TEXT NOT NULL
);
CREATE TABLE concurrency_group (
  name TEXT PRIMARY KEY,
  places BIGINT NOT NULL CHECK (places >= 1),
  changed_at_ms BIGINT NOT NULL,
  changed_by TEXT NOT NULL
);

-- The run of a job that a task belongs to; retries and replacements inherit it.
ALTER TABLE task ADD COLUMN job_id BIGINT;
ALTER TABLE task ADD COLUMN trigger_id BIGINT;
ALTER TABLE task ADD COLUMN scheduled_ms BIGINT;
-- Since when it waits for a place of its job; only then it is QUEUED, or CREATED until run_at_ms.
ALTER TABLE task ADD COLUMN waiting_ms BIGINT;
DROP INDEX task_due;
CREATE INDEX task_due ON task (run_at_ms, id) WHERE status = 1 AND waiting_ms IS NULL;
CREATE INDEX task_waiting ON task (job_id, id) WHERE status = 1 AND waiting_ms IS NOT NULL;
