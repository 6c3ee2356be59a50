//! `systole token`: who may do what.

use super::now_ms;
use crate::args::{CreateTokenArgs, Format, Global, RevokeTokenArgs, TokenAction, TokenArgs};
use crate::client::Client;
use crate::exit_code;
use crate::failure::{Failure, io_cause};
use crate::output::table::{self, Column, Text, plain};
use crate::output::{self, Output, json, text};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use systole_proto::v1;
use systole_scheduler::auth;

const COLUMNS: [Column; 6] = [
    Column::cut("NAME", 12),
    Column::whole("ROLE"),
    Column::whole("STATE"),
    Column::whole("USED").droppable(1),
    Column::whole("EXPIRES").droppable(2),
    Column::cut("CREATED", 10).droppable(3),
];

pub async fn run(global: &Global, args: &TokenArgs) -> Result<u8, Failure> {
    let output = Output::new(global);
    let client = Client::new(global)?;
    match &args.action {
        None | Some(TokenAction::Ls) => list(&client, &output).await,
        Some(TokenAction::Create(args)) => create(&client, &output, args).await,
        Some(TokenAction::Revoke(args)) => revoke(&client, &output, args).await,
    }
}

async fn list(client: &Client, output: &Output) -> Result<u8, Failure> {
    let tokens = client.tokens().await?;
    match output.format {
        Format::Json => json::document(&json::Tokens {
            tokens: tokens.iter().map(json::Token::from).collect(),
        }),
        Format::Jsonl => tokens.iter().for_each(|token| json::object(&json::Token::from(token))),
        Format::Id => tokens.iter().for_each(|token| output::line(&token.name)),
        Format::Table | Format::Wide => {
            let now = now_ms();
            let rows: Vec<Vec<Text>> = tokens.iter().map(|token| row(token, now)).collect();
            table::print(&COLUMNS, &rows, output);
        }
    }
    Ok(exit_code::OK)
}

fn row(token: &v1::Token, now: u64) -> Vec<Text> {
    let state = if token.revoked_at_ms != 0 {
        "revoked"
    } else if token.valid {
        "valid"
    } else {
        "expired"
    };
    let time = |ms: u64, none: &str| match ms {
        0 => none.to_owned(),
        ms => text::full_time(ms),
    };
    let used = match token.last_used_at_ms {
        0 => "never".to_owned(),
        ms => text::ago(ms, now),
    };
    vec![
        plain(token.name.as_str()),
        plain(token.role.as_str()),
        plain(state),
        plain(used),
        plain(time(token.expires_at_ms, "never")),
        plain(format!(
            "{} by {}",
            text::full_time(token.created_at_ms),
            token.created_by
        )),
    ]
}

async fn create(client: &Client, output: &Output, args: &CreateTokenArgs) -> Result<u8, Failure> {
    let secret = auth::new_secret(&format!("systole_{}", args.role));
    // The file first: a token whose secret could not be written would be of no use to anybody.
    if let Some(path) = &args.file {
        write_secret(path, &secret)?;
    }
    let request = v1::CreateTokenRequest {
        name: args.name.clone(),
        role: args.role.name().into(),
        secret_sha256: auth::hash(&secret),
        valid_for_ms: args
            .expires
            .map_or(0, |expires| u64::try_from(expires.as_millis()).unwrap_or(u64::MAX)),
        reason: args.reason.clone().unwrap_or_default(),
    };
    let token = match client.create_token(request).await {
        Ok(token) => token,
        Err(failure) => {
            if let Some(path) = &args.file {
                drop(std::fs::remove_file(path));
            }
            return Err(failure);
        }
    };
    let shown = args.file.is_none().then_some(secret.as_str());
    match output.format {
        Format::Json => json::document(&json::CreatedToken::new(&token, shown)),
        Format::Jsonl => json::object(&json::CreatedToken::new(&token, shown)),
        Format::Id => output::line(&token.name),
        Format::Table | Format::Wide => {
            if let Some(secret) = shown {
                output::line(secret);
            }
        }
    }
    let until = match token.expires_at_ms {
        0 => "until it is revoked".to_owned(),
        ms => format!("until {}", text::full_time(ms)),
    };
    let what = format!("token {} ({}), valid {until}", token.name, token.role);
    output.note(&match &args.file {
        Some(path) => format!("{what}. Use it with SYSTOLE_TOKEN_FILE={}", path.display()),
        None => format!("{what}. Its secret is shown this once: keep it in a file of mode 600"),
    });
    Ok(exit_code::OK)
}

fn write_secret(path: &Path, secret: &str) -> Result<(), Failure> {
    let failure = |error: &std::io::Error| {
        let hint = if error.kind() == std::io::ErrorKind::AlreadyExists {
            "it exists; name a new file".to_owned()
        } else {
            io_cause(error)
        };
        Failure::usage(format!("--file: {} cannot be made: {hint}", path.display()))
    };
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .map_err(|error| failure(&error))?;
    writeln!(file, "{secret}")
        .and_then(|()| file.sync_all())
        .map_err(|error| failure(&error))
}

async fn revoke(client: &Client, output: &Output, args: &RevokeTokenArgs) -> Result<u8, Failure> {
    let request = v1::RevokeTokensRequest {
        names: args.names.clone(),
        reason: args.reason.clone().unwrap_or_default(),
    };
    let results = client.revoke_tokens(request).await?;
    let done = results.iter().filter(|result| result.error.is_none());
    match output.format {
        Format::Json => json::document(&json::Results {
            results: results.iter().map(json::RevokedToken::from).collect(),
        }),
        Format::Jsonl => results
            .iter()
            .for_each(|result| json::object(&json::RevokedToken::from(result))),
        Format::Id => done.for_each(|result| output::line(&result.name)),
        Format::Table | Format::Wide => done.for_each(|result| {
            let before = if result.already {
                " before; nothing to change"
            } else {
                ""
            };
            output::line(&format!("token {}: revoked{before}", text::clean(&result.name)));
        }),
    }
    Ok(super::tell_errors(
        results.iter().filter_map(|result| result.error.as_ref()),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden::{self, NOW, THEN};

    #[test]
    fn the_state_of_a_token_is_a_word() {
        let token = |valid, revoked_at_ms| v1::Token {
            name: "ann".into(),
            role: "viewer".into(),
            valid,
            revoked_at_ms,
            ..v1::Token::default()
        };
        for (token, word) in [
            (token(true, 0), "valid"),
            (token(false, 0), "expired"),
            (token(false, 5), "revoked"),
        ] {
            let row = row(&token, 0);
            assert_eq!(row.len(), COLUMNS.len());
            assert_eq!(row[2].0, word);
            let text = table::render(&COLUMNS, &[row], Some(40), false);
            assert!(text.lines().all(|line| line.chars().count() <= 40), "{text}");
        }
    }

    #[test]
    fn a_secret_is_written_to_a_new_private_file_only() {
        use std::os::unix::fs::PermissionsExt as _;
        let path = std::env::temp_dir().join(format!("systole-secret-{}", uuid::Uuid::new_v4()));
        write_secret(&path, "abc").expect("written");
        let mode = std::fs::metadata(&path).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let failure = write_secret(&path, "other").expect_err("exists");
        assert!(failure.message.contains("name a new file"), "{failure}");
        assert_eq!(std::fs::read_to_string(&path).expect("read"), "abc\n");
        std::fs::remove_file(&path).expect("removed");
    }

    #[test]
    fn the_list_is_as_it_was() {
        let token = |name: &str, role: &str, valid| v1::Token {
            name: name.into(),
            role: role.into(),
            valid,
            created_at_ms: THEN,
            created_by: "admin".into(),
            ..v1::Token::default()
        };
        let mut used = token("ann@example.org", "operator", true);
        (used.last_used_at_ms, used.expires_at_ms) = (NOW - 60_000, NOW + 86_400_000);
        let mut revoked = token("runner@gpu-03", "runner", false);
        revoked.revoked_at_ms = NOW;
        let rows = [
            token("admin", "admin", true),
            used,
            revoked,
            token("old", "viewer", false),
        ];
        golden::table(
            "token",
            &COLUMNS,
            &rows.iter().map(|token| row(token, NOW)).collect::<Vec<_>>(),
        );
    }
}
