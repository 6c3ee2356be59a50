//! Named statements: one text for both databases, with tokens for the few places where they differ.
//!
//! | token | PostgreSQL | SQLite |
//! | --- | --- | --- |
//! | `{now}` | the database's clock, ms | the same |
//! | `{each:$n}` | the elements of a JSON array as `e.value` | the same |
//! | `{is:a,b}` | `a = b`, reached by an index on `a` whatever the statistics say | `a = b` |
//! | `{among:$n}` | `IN` the numbers of a JSON array, in the same way | the same |
//! | `{among_query:q}` | `IN` the results of a query, in the same way | the same |
//! | `{for_update}` | waits for and locks the rows | nothing: one writer |
//! | `{for_update_of:t}` | the same, of one table | nothing |
//! | `{skip_locked}` | locks the rows that nobody holds | nothing |
//!
//! Guards read `status + 0 = n` where the row is reached by its id: a plain `status = n` lets PostgreSQL
//! choose a partial index over that state instead, and walk all its dead entries (measured: 8.7 ms
//! instead of 0.1 ms for one row, after 6,000 tasks without a vacuum).
//!
//! Keys are compared as `{is:…}`. A plan is made once per connection, often while a table is nearly empty, and then
//! to walk the whole table or its primary key really is the cheapest; it is not any more a minute later (measured: 3.7 ms
//! instead of 0.1 ms for a dispatch, with 6,000 tasks). `a = ANY (ARRAY[b])` means the same, but is no clause to
//! merge or hash by, so that with sequential scans switched off only the way by key is left.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dialect {
    Postgres,
    Sqlite,
}

/// A statement: its name for errors and tests, its text with tokens, and how many parameters it takes.
#[derive(Debug)]
pub struct Sql {
    pub name: &'static str,
    text: &'static str,
    pub params: usize,
}

impl Sql {
    /// Counts the parameters at compile time: `$1` to `$9`, without gaps.
    pub const fn new(name: &'static str, text: &'static str) -> Self {
        let bytes = text.as_bytes();
        let mut params = 0;
        let mut i = 0;
        while i + 1 < bytes.len() {
            if bytes[i] == b'$' && bytes[i + 1].is_ascii_digit() {
                let n = (bytes[i + 1] - b'0') as usize;
                if n > params {
                    params = n;
                }
            }
            i += 1;
        }
        Self { name, text, params }
    }

    /// One statement made of the texts of others, at run time and once: it stays for the life of the process.
    pub fn joined(name: &'static str, text: String) -> Self {
        Self::new(name, Box::leak(text.into_boxed_str()))
    }

    /// With its tokens, to be a part of another one.
    pub fn text(&self) -> &'static str {
        self.text
    }

    /// The text for one database. Rendered once and kept: the number of statements is fixed.
    pub fn render(&'static self, dialect: Dialect) -> &'static str {
        static RENDERED: LazyLock<Mutex<HashMap<(&'static str, Dialect), &'static str>>> =
            LazyLock::new(Mutex::default);
        let mut rendered = match RENDERED.lock() {
            Ok(rendered) => rendered,
            Err(poisoned) => poisoned.into_inner(),
        };
        rendered
            .entry((self.text, dialect))
            .or_insert_with(|| Box::leak(render(self.text, dialect).into_boxed_str()))
    }
}

/// Replaces the tokens of a text.
pub fn render(text: &str, dialect: Dialect) -> String {
    let mut out = String::with_capacity(text.len() + 64);
    let mut rest = text;
    while let Some(open) = rest.find('{') {
        out.push_str(&rest[..open]);
        let close = closing(rest, open);
        let token = &rest[open + 1..close];
        let (name, argument) = token.split_once(':').unwrap_or((token, ""));
        let postgres = dialect == Dialect::Postgres;
        match (name, postgres) {
            ("now", true) => out.push_str("(extract(epoch FROM clock_timestamp()) * 1000)::bigint"),
            ("now", false) => out.push_str("CAST(unixepoch('subsec') * 1000 AS INTEGER)"),
            ("each", true) => {
                out.push_str("jsonb_array_elements(");
                out.push_str(argument);
                out.push_str("::text::jsonb) AS e(value)");
            }
            // Not json_each: it writes each element as text again for every mention of `e.value`, and `->>` reads it again.
            ("each", false) => {
                out.push_str("jsonb_each(");
                out.push_str(argument);
                out.push_str(") AS e");
            }
            ("is", _) => {
                let (left, right) = argument.split_once(',').unwrap_or((argument, ""));
                out.push_str(left);
                out.push_str(if postgres { " = ANY (ARRAY[" } else { " = " });
                out.push_str(right);
                out.push_str(if postgres { "])" } else { "" });
            }
            ("among_query", _) => {
                out.push_str(if postgres { "= ANY (ARRAY(" } else { "IN (" });
                out.push_str(&render(argument, dialect));
                out.push_str(if postgres { "))" } else { ")" });
            }
            ("among", true) => {
                out.push_str("= ANY (ARRAY(SELECT CAST(e.value AS BIGINT) FROM jsonb_array_elements(");
                out.push_str(argument);
                out.push_str("::text::jsonb) AS e(value)))");
            }
            ("among", false) => {
                out.push_str("IN (SELECT CAST(e.value AS BIGINT) FROM json_each(");
                out.push_str(argument);
                out.push_str(") AS e)");
            }
            ("for_update", true) => out.push_str("FOR UPDATE"),
            ("for_update_of", true) => {
                out.push_str("FOR UPDATE OF ");
                out.push_str(argument);
            }
            ("skip_locked", true) => out.push_str("FOR UPDATE SKIP LOCKED"),
            ("for_update" | "for_update_of" | "skip_locked", false) => {}
            _ => {
                out.push('{');
                out.push_str(token);
                out.push('}');
            }
        }
        rest = rest.get(close + 1..).unwrap_or("");
    }
    out.push_str(rest);
    out
}

/// The brace that closes the one at `open`; a token may contain others.
fn closing(text: &str, open: usize) -> usize {
    let mut depth = 0_usize;
    for (at, byte) in text.bytes().enumerate().skip(open) {
        match byte {
            b'{' => depth += 1,
            b'}' if depth <= 1 => return at,
            b'}' => depth -= 1,
            _ => {}
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_become_the_dialect() {
        static S: Sql = Sql::new("s", "SELECT {now}, $2 FROM {each:$1} {skip_locked}");
        assert_eq!(S.params, 2);
        assert_eq!(
            S.render(Dialect::Postgres),
            "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint, $2 FROM jsonb_array_elements($1::text::jsonb) AS e(value) FOR UPDATE SKIP LOCKED"
        );
        assert_eq!(
            S.render(Dialect::Sqlite),
            "SELECT CAST(unixepoch('subsec') * 1000 AS INTEGER), $2 FROM jsonb_each($1) AS e "
        );
        assert_eq!(
            render(
                "id {among_query:SELECT id FROM {each:$1}} {for_update}",
                Dialect::Postgres
            ),
            "id = ANY (ARRAY(SELECT id FROM jsonb_array_elements($1::text::jsonb) AS e(value))) FOR UPDATE"
        );
        let keys = "{is:t.id,x.id} OR t.id {among:$1}";
        assert_eq!(
            render(keys, Dialect::Postgres),
            "t.id = ANY (ARRAY[x.id]) OR t.id = ANY (ARRAY(SELECT CAST(e.value AS BIGINT) FROM jsonb_array_elements($1::text::jsonb) AS e(value)))"
        );
        assert_eq!(
            render(keys, Dialect::Sqlite),
            "t.id = x.id OR t.id IN (SELECT CAST(e.value AS BIGINT) FROM json_each($1) AS e)"
        );
    }
}
