-- Named tokens of four roles, with an expiry. SQLite changes no CHECK in place: the table is made anew.
-- A revoked token keeps its row, without its hash: the name says who did what, and no replica, of this version or
-- the one before, accepts it any more.
CREATE TABLE named_token (
  name TEXT PRIMARY KEY,
  role TEXT NOT NULL CHECK (role IN ('admin', 'operator', 'viewer', 'runner')),
  hash TEXT NOT NULL UNIQUE,
  created_at_ms BIGINT NOT NULL,
  created_by TEXT NOT NULL,
  expires_at_ms BIGINT,
  last_used_ms BIGINT,
  revoked_at_ms BIGINT,
  revoked_by TEXT
);
INSERT INTO named_token (name, role, hash, created_at_ms, created_by) SELECT name, role, hash, created_at_ms, created_by FROM token;
DROP TABLE token;
ALTER TABLE named_token RENAME TO token;

-- What an entry is about beyond its subject, for people.
ALTER TABLE audit ADD COLUMN detail TEXT NOT NULL DEFAULT '';
CREATE INDEX audit_actor ON audit (actor, id);
CREATE INDEX audit_subject ON audit (subject, id);
