-- The host that a token speaks for; NULL: any, as of tokens that people make, and of hosts that joined before this.
ALTER TABLE token ADD COLUMN host TEXT;
