-- The whole schema. Times are ms since the epoch, by the database's clock, in columns that end in _ms.
-- Ids are AUTOINCREMENT: without it an id comes back after the newest row was deleted.
-- Types are portable on purpose: the same statements serve PostgreSQL and SQLite.

-- Facts of the cluster, written once: cluster_id, callback_secret.
CREATE TABLE setting (
  name TEXT PRIMARY KEY,
  value TEXT NOT NULL
);

-- Tokens, stored as SHA-256 only. The row of the first start is how replicas agree who made them.
CREATE TABLE token (
  name TEXT PRIMARY KEY,
  role TEXT NOT NULL CHECK (role IN ('admin', 'runner')),
  hash TEXT NOT NULL,
  created_at_ms BIGINT NOT NULL,
  created_by TEXT NOT NULL
);

-- One distinct triple of queue, required labels (JSON, keys sorted) and priority.
CREATE TABLE lane (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  queue TEXT NOT NULL,
  require TEXT NOT NULL,
  priority BIGINT NOT NULL CHECK (priority BETWEEN 0 AND 9),
  UNIQUE (queue, require, priority)
);

-- One runner process and its identity: (instance_id, start_no).
CREATE TABLE host (
  host TEXT PRIMARY KEY,
  instance_id TEXT NOT NULL,
  start_no BIGINT NOT NULL,
  slots BIGINT NOT NULL,
  queues TEXT NOT NULL,
  labels TEXT NOT NULL,
  version TEXT NOT NULL,
  facts TEXT NOT NULL,
  boot_id TEXT NOT NULL,
  clock_skew_ms BIGINT NOT NULL DEFAULT 0,
  registered_at_ms BIGINT NOT NULL
);

-- One slot of a host. A beat acts only after it won this row with its start_no and a higher seq; that
-- write is the last-seen. No index but the key, so that every such write stays in its page (HOT).
CREATE TABLE runner (
  host TEXT NOT NULL,
  slot BIGINT NOT NULL CHECK (slot >= 0),
  instance_id TEXT NOT NULL,
  start_no BIGINT NOT NULL,
  seq BIGINT NOT NULL,
  seen_ms BIGINT NOT NULL,
  leaving BOOLEAN NOT NULL DEFAULT FALSE,
  task_id BIGINT,
  held_boot TEXT,
  redeliveries BIGINT NOT NULL DEFAULT 0,
  cordoned BOOLEAN NOT NULL DEFAULT FALSE,
  cordoned_by TEXT,
  cordon_reason TEXT,
  cordoned_at_ms BIGINT,
  PRIMARY KEY (host, slot)
);

-- One execution of one command. status: the numbers of TaskState. lane_id has no foreign key: the
-- check would lock the lane's row in every submission.
CREATE TABLE task (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  root_id BIGINT,
  retry_of BIGINT,
  retried_by BIGINT,
  attempt BIGINT NOT NULL DEFAULT 1 CHECK (attempt >= 1),
  replacements BIGINT NOT NULL DEFAULT 0,
  status SMALLINT NOT NULL CHECK (status BETWEEN 1 AND 10),
  lane_id BIGINT NOT NULL,
  priority BIGINT NOT NULL,
  target_host TEXT,
  target_slot BIGINT,
  name TEXT NOT NULL,
  job TEXT,
  spec TEXT NOT NULL,
  max_retries BIGINT NOT NULL DEFAULT 0,
  retry_delay_ms BIGINT NOT NULL DEFAULT 0,
  timeout_ms BIGINT,
  callback_url TEXT,
  submitted_by TEXT NOT NULL,
  submit_reason TEXT,
  created_at_ms BIGINT NOT NULL,
  run_at_ms BIGINT,
  eligible_at_ms BIGINT,
  host TEXT,
  slot BIGINT,
  start_no BIGINT,
  dispatched_at_ms BIGINT,
  started_at_ms BIGINT,
  ended_at_ms BIGINT,
  orphaned_at_ms BIGINT,
  terminating TEXT CHECK (terminating IN ('timeout', 'superseded', 'user')),
  cancelled_by TEXT,
  cancel_reason TEXT,
  outcome_kind TEXT,
  exit_code BIGINT,
  signal BIGINT,
  outcome_message TEXT,
  late_result TEXT,
  -- What the code must not do, the schema refuses.
  CHECK (status <> 1 OR run_at_ms IS NOT NULL),
  CHECK (status <> 2 OR eligible_at_ms IS NOT NULL),
  CHECK (status NOT IN (3, 4, 9) OR (host IS NOT NULL AND slot IS NOT NULL AND start_no IS NOT NULL)),
  CHECK (status NOT IN (5, 6, 7, 8, 10) OR outcome_kind IS NOT NULL),
  CHECK (status NOT IN (6, 7, 8, 10) OR ended_at_ms IS NOT NULL)
);

-- The claim: one range of this index per lane.
CREATE INDEX task_queue ON task (lane_id, eligible_at_ms, id) WHERE status = 2 AND target_host IS NULL;
CREATE INDEX task_target ON task (target_host, eligible_at_ms, id) WHERE status = 2 AND target_host IS NOT NULL;
-- Admission.
CREATE INDEX task_due ON task (run_at_ms, id) WHERE status = 1;
-- What runners hold. That a runner holds at most one is the business of its row (runner.task_id, won under
-- its lock): a unique index on (host, slot) would have to look at every dead entry of the slot at each
-- dispatch (measured: 5.7 ms instead of 0.1 ms after 400 tasks of a slot without a vacuum).
CREATE INDEX task_held ON task (id) WHERE status IN (3, 4, 9) AND orphaned_at_ms IS NULL;
CREATE INDEX task_terminating ON task (id) WHERE status = 9;
CREATE INDEX task_orphaned ON task (id) WHERE orphaned_at_ms IS NOT NULL AND status IN (3, 4, 9);
-- A task has at most one successor, so a chain is a line.
CREATE UNIQUE INDEX task_successor ON task (retry_of) WHERE retry_of IS NOT NULL;
CREATE INDEX task_chain ON task (root_id, id) WHERE retry_of IS NOT NULL;
-- Lists: the states that people look for, and jobs. FINISHED is most rows and is read by id.
CREATE INDEX task_unhappy ON task (status, id) WHERE status IN (7, 8, 10);
CREATE INDEX task_job ON task (job, id) WHERE job IS NOT NULL;

CREATE TABLE task_tag (
  tag TEXT NOT NULL,
  task_id BIGINT NOT NULL,
  PRIMARY KEY (tag, task_id)
);
CREATE INDEX task_tag_task ON task_tag (task_id);

-- Idempotency keys of clients, and one row per stored batch, by which a replica learns whether a
-- commit with unknown outcome happened. task_ids: JSON array.
CREATE TABLE submission (
  key TEXT PRIMARY KEY,
  body_hash TEXT NOT NULL,
  task_ids TEXT NOT NULL,
  created_at_ms BIGINT NOT NULL
);
CREATE INDEX submission_age ON submission (created_at_ms);

-- The outbox of callbacks: written by the transaction that ends the task.
CREATE TABLE callback (
  task_id BIGINT PRIMARY KEY,
  delivery_id TEXT NOT NULL,
  url TEXT NOT NULL,
  status TEXT NOT NULL CHECK (status IN ('pending', 'delivered', 'failed')),
  tries BIGINT NOT NULL DEFAULT 0,
  next_at_ms BIGINT NOT NULL,
  last_error TEXT NOT NULL DEFAULT ''
);
CREATE INDEX callback_due ON callback (next_at_ms) WHERE status = 'pending';

-- Output: bytes by offset. stored_bytes counts what is in output_chunk, total_bytes what the child wrote.
CREATE TABLE output (
  task_id BIGINT NOT NULL,
  stream SMALLINT NOT NULL CHECK (stream IN (1, 2)),
  stored_bytes BIGINT NOT NULL,
  total_bytes BIGINT,
  PRIMARY KEY (task_id, stream)
);
CREATE TABLE output_chunk (
  task_id BIGINT NOT NULL,
  stream SMALLINT NOT NULL,
  start_byte BIGINT NOT NULL,
  data BLOB NOT NULL,
  PRIMARY KEY (task_id, stream, start_byte)
);

-- Who changed what in the fleet, and why.
CREATE TABLE audit (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  at_ms BIGINT NOT NULL,
  actor TEXT NOT NULL,
  action TEXT NOT NULL,
  subject TEXT NOT NULL,
  reason TEXT NOT NULL
);
