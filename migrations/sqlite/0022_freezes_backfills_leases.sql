-- Freezes: what is neither dispatched nor fired. ended_ms NULL: in force.
CREATE TABLE frozen (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  scope TEXT NOT NULL CHECK (scope IN ('all', 'queue', 'tag')),
  name TEXT NOT NULL DEFAULT '',
  frozen_by TEXT NOT NULL,
  reason TEXT NOT NULL DEFAULT '',
  since_ms BIGINT NOT NULL,
  -- NULL: until somebody lifts it.
  until_ms BIGINT,
  ended_ms BIGINT
);
CREATE UNIQUE INDEX frozen_in_force ON frozen (scope, name) WHERE ended_ms IS NULL;
CREATE INDEX frozen_ended ON frozen (ended_ms) WHERE ended_ms IS NOT NULL;

-- Rises with each change of what is frozen: a claim that was planned with another one gets nothing. thawing: triggers that were
-- put aside are to be looked at again.
CREATE TABLE freeze_state (
  id BIGINT PRIMARY KEY CHECK (id = 1),
  generation BIGINT NOT NULL,
  thawing BOOLEAN NOT NULL
);
INSERT INTO freeze_state (id, generation, thawing) VALUES (1, 1, FALSE);

-- Put aside by a freeze.
ALTER TABLE job_trigger ADD COLUMN frozen BOOLEAN NOT NULL DEFAULT FALSE;
CREATE INDEX job_trigger_frozen ON job_trigger (id) WHERE frozen;

-- Fires of a job that are made up. max_concurrent NULL: by the places of the job.
CREATE TABLE backfill (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  job_id BIGINT NOT NULL,
  job TEXT NOT NULL,
  trigger_name TEXT NOT NULL DEFAULT '',
  from_ms BIGINT NOT NULL,
  to_ms BIGINT NOT NULL,
  fires BIGINT NOT NULL,
  -- Of the fires, those that have a task.
  made BIGINT NOT NULL DEFAULT 0,
  max_concurrent BIGINT,
  state TEXT NOT NULL CHECK (state IN ('running', 'done', 'cancelled')),
  created_by TEXT NOT NULL,
  reason TEXT NOT NULL DEFAULT '',
  created_ms BIGINT NOT NULL,
  ended_ms BIGINT,
  ended_by TEXT
);
CREATE INDEX backfill_running ON backfill (id) WHERE state = 'running';

-- The backfill that makes it up, and the verdict that it had before. It is made up when the verdict is `fired`.
ALTER TABLE occurrence ADD COLUMN backfill_id BIGINT;
ALTER TABLE occurrence ADD COLUMN was TEXT NOT NULL DEFAULT '';
CREATE INDEX occurrence_backfill ON occurrence (backfill_id, scheduled_ms, id) WHERE backfill_id IS NOT NULL AND verdict <> 'fired';

-- Leases of applications. token rises with each acquisition; holder NULL: it is free.
CREATE TABLE lease (
  resource TEXT PRIMARY KEY,
  token BIGINT NOT NULL,
  holder TEXT,
  -- The name of the access token that acquired it.
  actor TEXT NOT NULL,
  ttl_ms BIGINT NOT NULL,
  acquired_ms BIGINT NOT NULL,
  renewals BIGINT NOT NULL DEFAULT 0,
  renewed_ms BIGINT NOT NULL,
  expires_ms BIGINT NOT NULL,
  -- Somebody took it away: it is not renewed any more.
  revoked_by TEXT,
  revoke_reason TEXT
);
CREATE INDEX lease_expires ON lease (expires_ms);

-- What tokens were ever given, of leases whose rows are gone.
CREATE TABLE lease_floor (
  id BIGINT PRIMARY KEY CHECK (id = 1),
  token BIGINT NOT NULL
);
INSERT INTO lease_floor (id, token) VALUES (1, 0);
