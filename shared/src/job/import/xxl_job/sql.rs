//! The rows of a dump in SQL, as mysqldump and its like write it. Only what names one of the wanted tables is read; everything else is
//! passed over by its tokens, so that neither a comment nor a text with a semicolon in it is taken for something else.

use super::table::{Row, Table};
use std::collections::BTreeMap;

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    /// A word or a name, quoted or not.
    Name(String),
    Text(String),
    Number(String),
    Sign(char),
}

struct Tokens<'a> {
    text: &'a str,
    at: usize,
    line: usize,
}

impl Tokens<'_> {
    fn rest(&self) -> &str {
        &self.text[self.at..]
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn skip(&mut self, bytes: usize) {
        self.line += self.text[self.at..self.at + bytes].matches('\n').count();
        self.at += bytes;
    }

    fn skip_until(&mut self, end: &str) {
        let bytes = self.rest().find(end).map_or(self.rest().len(), |at| at + end.len());
        self.skip(bytes);
    }

    /// Blanks and comments. What is in `/*! … */` is for some servers only, and never rows.
    fn skip_nothing(&mut self) {
        loop {
            let rest = self.rest();
            let blank = rest.len() - rest.trim_start().len();
            if blank > 0 {
                self.skip(blank);
            } else if rest.starts_with("/*") {
                self.skip_until("*/");
            } else if rest.starts_with('#') || rest.starts_with("-- ") || rest.starts_with("--\n") {
                self.skip_until("\n");
            } else {
                return;
            }
        }
    }

    /// A text with its quotes undoubled and its escapes undone; `None` where it is not closed.
    fn quoted(&mut self, quote: char) -> Option<String> {
        let mut out = String::new();
        let mut rest = self.text[self.at + 1..].char_indices().peekable();
        while let Some((index, c)) = rest.next() {
            if c == quote {
                if rest.next_if(|(_, next)| *next == quote).is_some() {
                    out.push(quote);
                    continue;
                }
                self.skip(1 + index + quote.len_utf8());
                return Some(out);
            }
            if c == '\\' && quote != '`' {
                let (_, escaped) = rest.next()?;
                out.push(match escaped {
                    'n' => '\n',
                    'r' => '\r',
                    't' => '\t',
                    '0' => '\0',
                    'b' => '\x08',
                    'Z' => '\x1a',
                    other => other,
                });
                continue;
            }
            out.push(c);
        }
        None
    }

    fn next(&mut self) -> Result<Option<(Token, usize)>, String> {
        self.skip_nothing();
        let line = self.line;
        let Some(c) = self.peek() else { return Ok(None) };
        let token = match c {
            '\'' | '"' | '`' => {
                let text = self
                    .quoted(c)
                    .ok_or_else(|| format!("a text that begins in line {line} is not closed"))?;
                if c == '`' { Token::Name(text) } else { Token::Text(text) }
            }
            c if c.is_alphanumeric() || c == '_' || c == '-' || c == '.' => {
                let is_word = |c: char| c.is_alphanumeric() || matches!(c, '_' | '$' | '-' | '.');
                let word: String = self.rest().chars().take_while(|&c| is_word(c)).collect();
                self.skip(word.len());
                let digits = word.strip_prefix('-').unwrap_or(&word);
                if digits.starts_with(|c: char| c.is_ascii_digit() || c == '.') && !word.contains('_') {
                    Token::Number(word)
                } else {
                    Token::Name(word)
                }
            }
            c => {
                self.skip(c.len_utf8());
                Token::Sign(c)
            }
        };
        Ok(Some((token, line)))
    }
}

/// A table without its database: `xxl_job`.`xxl_job_info`.
fn last_part(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or(name)
}

fn is_word(token: Option<&(Token, usize)>, word: &str) -> bool {
    matches!(token, Some((Token::Name(name), _)) if name.eq_ignore_ascii_case(word))
}

/// A statement, token by token.
struct Statement {
    tokens: std::vec::IntoIter<(Token, usize)>,
    ahead: Option<(Token, usize)>,
}

impl Statement {
    fn new(tokens: Vec<(Token, usize)>) -> Self {
        let mut tokens = tokens.into_iter();
        let ahead = tokens.next();
        Self { tokens, ahead }
    }

    fn next(&mut self) -> Option<(Token, usize)> {
        std::mem::replace(&mut self.ahead, self.tokens.next())
    }

    fn word(&mut self, word: &str) -> bool {
        let is = is_word(self.ahead.as_ref(), word);
        if is {
            self.next();
        }
        is
    }

    fn sign(&mut self, sign: char) -> bool {
        let is = matches!(self.ahead, Some((Token::Sign(found), _)) if found == sign);
        if is {
            self.next();
        }
        is
    }

    /// The name of a table.
    fn table(&mut self) -> Option<String> {
        let mut found = None;
        // `db`.`table`, where the dot is a word of its own or stands at the end of one.
        while let Some((Token::Name(name) | Token::Number(name), _)) = &self.ahead {
            found = Some(last_part(name).to_owned())
                .filter(|name| !name.is_empty())
                .or(found);
            let goes_on = name.ends_with('.') || name == ".";
            self.next();
            let dot =
                matches!(&self.ahead, Some((Token::Name(next) | Token::Number(next), _)) if next.starts_with('.'));
            if !goes_on && !dot {
                break;
            }
        }
        found
    }

    /// `(a, b, …)` of names, up to its end.
    fn columns(&mut self) -> Vec<String> {
        let mut names = Vec::new();
        while let Some((token, _)) = self.next() {
            match token {
                Token::Name(name) | Token::Text(name) => names.push(name),
                Token::Sign(')') => break,
                _ => {}
            }
        }
        names
    }

    /// The columns of a CREATE TABLE: the first name of each definition.
    fn definitions(&mut self) -> Vec<String> {
        const NO_COLUMNS: [&str; 8] = [
            "primary",
            "unique",
            "key",
            "index",
            "constraint",
            "fulltext",
            "foreign",
            "check",
        ];
        let mut names = Vec::new();
        let (mut depth, mut begins) = (0usize, true);
        while let Some((token, _)) = self.next() {
            match token {
                Token::Sign('(') => depth += 1,
                Token::Sign(')') if depth == 0 => break,
                Token::Sign(')') => depth -= 1,
                Token::Sign(',') if depth == 0 => begins = true,
                Token::Name(name) if begins => {
                    begins = false;
                    if !NO_COLUMNS.iter().any(|word| name.eq_ignore_ascii_case(word)) {
                        names.push(name);
                    }
                }
                _ => {}
            }
        }
        names
    }

    /// The values of one row, behind its opening bracket. An expression is not read, and empty.
    fn values(&mut self) -> Option<Vec<Option<String>>> {
        let mut values = Vec::new();
        let mut value = None;
        let mut depth = 0usize;
        while let Some((token, _)) = self.next() {
            match token {
                Token::Sign(')') if depth == 0 => {
                    values.push(value.take());
                    return Some(values);
                }
                Token::Sign(',') if depth == 0 => values.push(value.take()),
                Token::Sign('(') => depth += 1,
                Token::Sign(')') => depth -= 1,
                Token::Text(text) | Token::Number(text) if depth == 0 => value = Some(text),
                _ => {}
            }
        }
        None
    }
}

/// Rows of the wanted tables. An error is about the text as a whole.
pub fn read(text: &str, wanted: &[&str]) -> Result<Vec<Table>, String> {
    let mut tokens = Tokens { text, at: 0, line: 1 };
    let mut tables: Vec<Table> = Vec::new();
    let mut columns: BTreeMap<String, Vec<String>> = BTreeMap::new();
    loop {
        let mut statement = Vec::new();
        let ended = loop {
            match tokens.next()? {
                None => break true,
                Some((Token::Sign(';'), _)) => break false,
                Some(token) => statement.push(token),
            }
        };
        let mut statement = Statement::new(statement);
        if statement.word("create") && statement.word("table") {
            if statement.word("if") {
                statement.word("not");
                statement.word("exists");
            }
            if let Some(name) = statement.table().filter(|name| wanted.contains(&name.as_str()))
                && statement.sign('(')
            {
                columns.insert(name, statement.definitions());
            }
        } else if statement.word("insert") || statement.word("replace") {
            statement.word("ignore");
            statement.word("into");
            if let Some(name) = statement.table().filter(|name| wanted.contains(&name.as_str())) {
                let table = rows(&name, &mut statement, &columns)?;
                tables.push(table);
            }
        }
        if ended {
            return Ok(tables);
        }
    }
}

fn rows(name: &str, statement: &mut Statement, known: &BTreeMap<String, Vec<String>>) -> Result<Table, String> {
    let columns = if statement.sign('(') {
        statement.columns()
    } else {
        let columns = known.get(name).cloned();
        columns.ok_or_else(|| {
            format!(
                "the rows of {name} name no columns, and there is no CREATE TABLE before them; dump the table with it"
            )
        })?
    };
    if !statement.word("values") && !statement.word("value") {
        return Err(format!("the INSERT of {name} has no VALUES"));
    }
    let mut table = Table {
        name: name.to_owned(),
        rows: Vec::new(),
    };
    loop {
        let line = statement.ahead.as_ref().map_or(0, |(_, line)| *line);
        if !statement.sign('(') {
            return Ok(table);
        }
        let values = statement
            .values()
            .ok_or_else(|| format!("the row of {name} in line {line} is not closed"))?;
        if values.len() != columns.len() {
            return Err(format!(
                "the row of {name} in line {line} has {} values for {} columns",
                values.len(),
                columns.len()
            ));
        }
        table.rows.push(Row::new(line, &columns, values));
        statement.sign(',');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLES: [&str; 1] = ["xxl_job_info"];

    fn values<'a>(tables: &'a [Table], column: &str) -> Vec<&'a str> {
        tables
            .iter()
            .flat_map(|table| &table.rows)
            .map(|row| row.text(column))
            .collect()
    }

    #[test]
    fn rows_of_many_statements_have_their_columns_by_name() {
        let text = "-- MySQL dump 10.13\n/*!40101 SET NAMES utf8mb4 */;\nDROP TABLE IF EXISTS `xxl_job_info`;\n\
            CREATE TABLE `xxl_job_info` (\n  `id` int(11) NOT NULL AUTO_INCREMENT COMMENT 'a, b) c',\n  `job_desc` varchar(255) DEFAULT 'x',\n  `score` decimal(5,2),\n  PRIMARY KEY (`id`),\n  KEY `k` (`job_desc`)\n) ENGINE=InnoDB;\n\
            INSERT INTO `xxl_job_info` VALUES (1,'it''s \\'so\\'; (a),\\n\\\\b',NULL),\n(2,_utf8mb4'每日',-1.5);\n\
            INSERT INTO `other` VALUES (1,'xxl_job_info');\n\
            insert ignore into xxl_job.xxl_job_info (job_desc, id) values ('c', 3);\n\
            REPLACE INTO `xxl_job`.`xxl_job_info` (`id`) VALUE (4)";
        let tables = read(text, &TABLES).expect("tables");
        assert_eq!(values(&tables, "id"), ["1", "2", "3", "4"]);
        assert_eq!(values(&tables, "job_desc"), ["it's 'so'; (a),\n\\b", "每日", "c", ""]);
        assert_eq!(values(&tables, "score"), ["", "-1.5", "", ""]);
        let lines: Vec<_> = tables
            .iter()
            .flat_map(|table| &table.rows)
            .map(|row| row.line)
            .collect();
        assert_eq!(lines, [11, 12, 14, 15]);
    }

    #[test]
    fn what_is_no_whole_dump_is_said() {
        for (text, words) in [
            ("INSERT INTO xxl_job_info VALUES (1);", "CREATE TABLE"),
            ("INSERT INTO xxl_job_info (id) VALUES (1, 2);", "2 values for 1"),
            ("INSERT INTO xxl_job_info (id) VALUES ('a);", "line 1 is not closed"),
            ("INSERT INTO xxl_job_info (id) VALUES (1", "is not closed"),
            ("INSERT INTO xxl_job_info (id) SELECT 1;", "no VALUES"),
        ] {
            let error = read(text, &TABLES).expect_err(text);
            assert!(error.contains(words), "{text}: {error}");
        }
        assert_eq!(read("", &TABLES).expect("nothing").len(), 0);
    }
}
