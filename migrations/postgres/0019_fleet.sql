-- A cordon that ends by itself, by the database's clock; NULL: it holds until somebody lifts it.
ALTER TABLE host ADD COLUMN cordon_until_ms BIGINT;
ALTER TABLE runner ADD COLUMN cordon_until_ms BIGINT;
CREATE INDEX host_cordon_until ON host (cordon_until_ms) WHERE cordon_until_ms IS NOT NULL;
CREATE INDEX runner_cordon_until ON runner (cordon_until_ms) WHERE cordon_until_ms IS NOT NULL;

-- Schedulers, each with a row of its own that it writes at each tick.
CREATE TABLE replica (
  name TEXT PRIMARY KEY,
  version TEXT NOT NULL,
  seen_ms BIGINT NOT NULL
);
