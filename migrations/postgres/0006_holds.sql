-- A host as a whole gets no new tasks: slots that are added later neither.
ALTER TABLE host ADD COLUMN cordoned BOOLEAN NOT NULL DEFAULT FALSE;
ALTER TABLE host ADD COLUMN cordoned_by TEXT;
ALTER TABLE host ADD COLUMN cordon_reason TEXT;
ALTER TABLE host ADD COLUMN cordoned_at_ms BIGINT;

-- Processes that lost their host to another one. knocked_at_ms: when one of them last asked to have it back.
CREATE TABLE replaced (
  host TEXT NOT NULL,
  instance_id TEXT NOT NULL,
  start_no BIGINT NOT NULL,
  replaced_at_ms BIGINT NOT NULL,
  knocked_at_ms BIGINT,
  PRIMARY KEY (host, instance_id)
);

-- Hosts that have held a newer task than this database ever gave: it was set back. Empty in ordinary times.
CREATE TABLE ahead (
  host TEXT PRIMARY KEY,
  max_task_id BIGINT NOT NULL,
  seen_ms BIGINT NOT NULL
);

-- Scheme, host and port of the URL: what deliveries have their places by. Empty in rows of an older version.
ALTER TABLE callback ADD COLUMN receiver TEXT NOT NULL DEFAULT '';
