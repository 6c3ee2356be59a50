-- A task that is started again because its runner was lost counts here, apart from attempts; copied along the chain.
ALTER TABLE task ADD COLUMN recoveries BIGINT NOT NULL DEFAULT 0;

-- Of a task whose host the scheduler chooses: the policy, what it hashes, the host that it is to avoid, and when it was chosen.
-- target_host is '' until then, which no runner is called: nobody takes it.
ALTER TABLE task ADD COLUMN route TEXT;
ALTER TABLE task ADD COLUMN route_key TEXT;
ALTER TABLE task ADD COLUMN avoid_host TEXT;
ALTER TABLE task ADD COLUMN routed_ms BIGINT;
CREATE INDEX task_routed ON task (routed_ms) WHERE status = 2 AND routed_ms IS NOT NULL;

-- A broadcast is a set: a head, which has set_size and runs while its members do, and members, which name it. shard_*: of those
-- members that run.
-- set_parallel, set_stop_after: its rules; NULL: no bound.
ALTER TABLE task ADD COLUMN set_size BIGINT;
ALTER TABLE task ADD COLUMN set_parallel BIGINT;
ALTER TABLE task ADD COLUMN set_stop_after BIGINT;
ALTER TABLE task ADD COLUMN set_id BIGINT;
ALTER TABLE task ADD COLUMN shard_index BIGINT;
ALTER TABLE task ADD COLUMN shard_total BIGINT;
CREATE INDEX task_set ON task (set_id, id) WHERE set_id IS NOT NULL;
CREATE INDEX task_set_open ON task (id) WHERE set_size IS NOT NULL AND status IN (4, 9);

-- Which hosts the runs of a job were given to. turn: rises with each choice of the job.
CREATE TABLE route_use (
  job_id BIGINT NOT NULL,
  host TEXT NOT NULL,
  turn BIGINT NOT NULL,
  uses BIGINT NOT NULL,
  PRIMARY KEY (job_id, host)
);
