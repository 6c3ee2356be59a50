//! Where alarms go: the file of channels of a scheduler. Secrets stand in files of their own, which this one names.

use crate::error::Invalid;
use crate::limits::{ALARM_OUTPUT_LINES_DEFAULT, ALARM_OUTPUT_LINES_MAX, CHANNELS_MAX, MAIL_RECIPIENTS_MAX};
use crate::task::spec::check_word;
use serde::Deserialize;
use std::path::PathBuf;

const PAGERDUTY_URL: &str = "https://events.pagerduty.com/v2/enqueue";
const NTFY_URL: &str = "https://ntfy.sh";

/// A value that may be a secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    Here(String),
    /// Read anew for each delivery, so that it can be changed without a restart.
    File(PathBuf),
}

/// How a connection to a mail server is protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Security {
    /// TLS from the first byte; port 465.
    Tls,
    /// A plain beginning that must become TLS; port 587.
    StartTls,
    /// None; port 25.
    Plain,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mail {
    pub host: String,
    pub port: u16,
    pub security: Security,
    pub user: Option<String>,
    pub password_file: Option<PathBuf>,
    pub from: String,
    pub to: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    Mail(Mail),
    Webhook {
        url: Value,
        /// Signs; `None`: the secret of the cluster's callbacks.
        secret_file: Option<PathBuf>,
    },
    Slack {
        url: Value,
    },
    Teams {
        url: Value,
    },
    PagerDuty {
        url: Value,
        key_file: PathBuf,
    },
    Ntfy {
        url: Value,
        topic: Value,
        token_file: Option<PathBuf>,
    },
}

impl Target {
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Mail(_) => "mail",
            Self::Webhook { .. } => "webhook",
            Self::Slack { .. } => "slack",
            Self::Teams { .. } => "teams",
            Self::PagerDuty { .. } => "pagerduty",
            Self::Ntfy { .. } => "ntfy",
        }
    }

    /// The files that must be readable.
    pub fn files(&self) -> Vec<&PathBuf> {
        let mut files = Vec::new();
        match self {
            Self::Mail(mail) => files.extend(&mail.password_file),
            Self::Webhook { url, secret_file } => {
                files.extend(file_of(url));
                files.extend(secret_file);
            }
            Self::Slack { url } | Self::Teams { url } => files.extend(file_of(url)),
            Self::PagerDuty { url, key_file } => {
                files.extend(file_of(url));
                files.push(key_file);
            }
            Self::Ntfy { url, topic, token_file } => {
                files.extend(file_of(url));
                files.extend(file_of(topic));
                files.extend(token_file);
            }
        }
        files
    }
}

fn file_of(value: &Value) -> Option<&PathBuf> {
    match value {
        Value::Here(_) => None,
        Value::File(path) => Some(path),
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Channel {
    pub name: String,
    /// Lines of output in an alarm; 0: none leaves the cluster.
    pub output_lines: usize,
    pub target: Target,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    #[serde(default)]
    format: Option<u32>,
    #[serde(default)]
    channel: Vec<Raw>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Raw {
    name: String,
    kind: String,
    output_lines: Option<usize>,
    url: Option<String>,
    url_file: Option<PathBuf>,
    secret_file: Option<PathBuf>,
    smtp: Option<String>,
    user: Option<String>,
    password_file: Option<PathBuf>,
    from: Option<String>,
    to: Vec<String>,
    key_file: Option<PathBuf>,
    topic: Option<String>,
    topic_file: Option<PathBuf>,
    token_file: Option<PathBuf>,
}

impl Raw {
    /// Fields that are given, but for those of every channel.
    fn given(&self) -> Vec<&'static str> {
        [
            ("url", self.url.is_some()),
            ("url_file", self.url_file.is_some()),
            ("secret_file", self.secret_file.is_some()),
            ("smtp", self.smtp.is_some()),
            ("user", self.user.is_some()),
            ("password_file", self.password_file.is_some()),
            ("from", self.from.is_some()),
            ("to", !self.to.is_empty()),
            ("key_file", self.key_file.is_some()),
            ("topic", self.topic.is_some()),
            ("topic_file", self.topic_file.is_some()),
            ("token_file", self.token_file.is_some()),
        ]
        .into_iter()
        .filter_map(|(name, given)| given.then_some(name))
        .collect()
    }
}

/// Kinds with the fields that each may have.
const KINDS: [(&str, &[&str]); 6] = [
    ("mail", &["smtp", "user", "password_file", "from", "to"]),
    ("webhook", &["url", "url_file", "secret_file"]),
    ("slack", &["url", "url_file"]),
    ("teams", &["url", "url_file"]),
    ("pagerduty", &["key_file", "url", "url_file"]),
    ("ntfy", &["topic", "topic_file", "url", "url_file", "token_file"]),
];

/// Reads the text of a file of channels. The first thing that is wrong is named, with line and column where it is the form.
pub fn read(text: &str) -> Result<Vec<Channel>, Invalid> {
    let document: Document = toml::from_str(text).map_err(|error| Invalid::new("file", error.to_string()))?;
    if document.format.is_some_and(|format| format != 1) {
        return Err(Invalid::new(
            "format",
            "is another one than 1, which is all that this version reads",
        ));
    }
    if document.channel.len() > CHANNELS_MAX {
        let count = document.channel.len();
        return Err(Invalid::new(
            "channel",
            format!("has {count} entries; at most {CHANNELS_MAX} are allowed"),
        ));
    }
    let mut channels: Vec<Channel> = Vec::new();
    for (index, raw) in document.channel.iter().enumerate() {
        let channel = channel(raw).map_err(|fault| {
            let which = if raw.name.is_empty() {
                format!("channel[{index}]")
            } else {
                format!("channel {}", raw.name)
            };
            Invalid::new(format!("{which}: {}", fault.field), fault.message)
        })?;
        if channels.iter().any(|known| known.name == channel.name) {
            return Err(Invalid::new(
                format!("channel {}: name", channel.name),
                "occurs twice; rename one",
            ));
        }
        channels.push(channel);
    }
    Ok(channels)
}

fn missing(field: &str, example: &str) -> Invalid {
    Invalid::new(field, format!("is missing; write for example {example}"))
}

fn channel(raw: &Raw) -> Result<Channel, Invalid> {
    if raw.name.is_empty() {
        return Err(missing("name", "name = \"on-call\""));
    }
    check_word(&raw.name, "name")?;
    let Some((_, allowed)) = KINDS.iter().find(|(kind, _)| *kind == raw.kind) else {
        let kinds: Vec<&str> = KINDS.iter().map(|(kind, _)| *kind).collect();
        return Err(Invalid::new(
            "kind",
            format!("{:?} is none of {}", raw.kind, kinds.join(", ")),
        ));
    };
    if let Some(field) = raw.given().into_iter().find(|field| !allowed.contains(field)) {
        return Err(Invalid::new(
            field,
            format!("is no field of kind {}; those are {}", raw.kind, allowed.join(", ")),
        ));
    }
    let output_lines = raw.output_lines.unwrap_or(ALARM_OUTPUT_LINES_DEFAULT);
    if output_lines > ALARM_OUTPUT_LINES_MAX {
        return Err(Invalid::new(
            "output_lines",
            format!("{output_lines} is outside 0 to {ALARM_OUTPUT_LINES_MAX}"),
        ));
    }
    let target = match raw.kind.as_str() {
        "mail" => Target::Mail(mail(raw)?),
        "webhook" => Target::Webhook {
            url: url(raw, None)?,
            secret_file: raw.secret_file.clone(),
        },
        "slack" => Target::Slack { url: url(raw, None)? },
        "teams" => Target::Teams { url: url(raw, None)? },
        "pagerduty" => Target::PagerDuty {
            url: url(raw, Some(PAGERDUTY_URL))?,
            key_file: raw
                .key_file
                .clone()
                .ok_or_else(|| missing("key_file", "key_file = \"/etc/systole/pagerduty.key\""))?,
        },
        _ => Target::Ntfy {
            url: url(raw, Some(NTFY_URL))?,
            topic: one_of(
                "topic",
                raw.topic.as_ref(),
                raw.topic_file.as_ref(),
                "topic_file = \"/etc/systole/ntfy.topic\"",
            )?,
            token_file: raw.token_file.clone(),
        },
    };
    Ok(Channel {
        name: raw.name.clone(),
        output_lines,
        target,
    })
}

fn one_of(field: &str, here: Option<&String>, file: Option<&PathBuf>, example: &str) -> Result<Value, Invalid> {
    match (here, file) {
        (Some(text), None) if !text.trim().is_empty() => Ok(Value::Here(text.trim().to_owned())),
        (None, Some(path)) => Ok(Value::File(path.clone())),
        (Some(_), Some(_)) => Err(Invalid::new(field, format!("give one of {field} and {field}_file"))),
        _ => Err(missing(field, example)),
    }
}

/// An address to send to.
pub fn check_url(text: &str) -> Result<(), Invalid> {
    let rest = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
    match rest {
        Some(rest) if !rest.is_empty() && !text.contains(char::is_whitespace) => Ok(()),
        // Not the text itself: it may be a secret.
        _ => Err(Invalid::new("url", "is no address; write https://HOST/PATH")),
    }
}

fn url(raw: &Raw, default: Option<&str>) -> Result<Value, Invalid> {
    if let (None, None, Some(default)) = (&raw.url, &raw.url_file, default) {
        return Ok(Value::Here(default.to_owned()));
    }
    let value = one_of(
        "url",
        raw.url.as_ref(),
        raw.url_file.as_ref(),
        "url_file = \"/etc/systole/on-call.url\"",
    )?;
    if let Value::Here(text) = &value {
        check_url(text)?;
    }
    Ok(value)
}

fn mail(raw: &Raw) -> Result<Mail, Invalid> {
    let example = "smtp = \"smtps://mail.example.org\", \"smtp+starttls://mail.example.org\" or \"smtp://localhost\"";
    let text = raw.smtp.as_deref().ok_or_else(|| missing("smtp", example))?;
    let (security, default_port, rest) = if let Some(rest) = text.strip_prefix("smtps://") {
        (Security::Tls, 465, rest)
    } else if let Some(rest) = text.strip_prefix("smtp+starttls://") {
        (Security::StartTls, 587, rest)
    } else if let Some(rest) = text.strip_prefix("smtp://") {
        (Security::Plain, 25, rest)
    } else {
        return Err(Invalid::new(
            "smtp",
            format!("{text:?} is no mail server; write {example}"),
        ));
    };
    let rest = rest.trim_end_matches('/');
    let (host, port) = host_and_port(rest, default_port)
        .ok_or_else(|| Invalid::new("smtp", format!("{text:?} names no host and port; write {example}")))?;
    if raw.user.is_some() != raw.password_file.is_some() {
        let field = if raw.user.is_some() { "password_file" } else { "user" };
        return Err(Invalid::new(field, "is missing; user and password_file go together"));
    }
    if raw.user.is_some() && security == Security::Plain && !is_here(&host) {
        return Err(Invalid::new(
            "smtp",
            "others could read the password; write smtps:// or smtp+starttls://",
        ));
    }
    let from = raw
        .from
        .clone()
        .ok_or_else(|| missing("from", "from = \"systole@example.org\""))?;
    check_address(&from, "from")?;
    if raw.to.is_empty() {
        return Err(missing("to", "to = [\"on-call@example.org\"]"));
    }
    if raw.to.len() > MAIL_RECIPIENTS_MAX {
        let count = raw.to.len();
        return Err(Invalid::new(
            "to",
            format!("has {count} addresses; at most {MAIL_RECIPIENTS_MAX} are allowed"),
        ));
    }
    for (index, address) in raw.to.iter().enumerate() {
        check_address(address, &format!("to[{index}]"))?;
    }
    Ok(Mail {
        host,
        port,
        security,
        user: raw.user.clone(),
        password_file: raw.password_file.clone(),
        from,
        to: raw.to.clone(),
    })
}

fn host_and_port(text: &str, default: u16) -> Option<(String, u16)> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']')?;
            (host, port.strip_prefix(':'))
        }
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    let odd = |c: char| c.is_whitespace() || "/@?#".contains(c);
    if host.is_empty() || host.contains(odd) {
        return None;
    }
    let port = match port {
        None => default,
        Some(port) => port.parse().ok().filter(|&port: &u16| port > 0)?,
    };
    Some((host.to_owned(), port))
}

fn is_here(host: &str) -> bool {
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// `NAME <a@b>` or `a@b`. The library for mails has the last word.
fn check_address(text: &str, field: &str) -> Result<(), Invalid> {
    let plain = match (text.split_once('<'), text.ends_with('>')) {
        (Some((_, address)), true) => address.trim_end_matches('>'),
        _ => text,
    };
    let good = plain.split_once('@').is_some_and(|(who, host)| {
        !who.is_empty() && !host.is_empty() && !host.contains('@') && !plain.contains(char::is_whitespace)
    });
    if good && !text.contains(['\r', '\n']) {
        return Ok(());
    }
    Err(Invalid::new(
        field,
        format!("{text:?} is no mail address; write on-call@example.org"),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: &str = r#"
format = 1

[[channel]]
name = "dba-mail"
kind = "mail"
smtp = "smtps://mail.example.org"
user = "systole"
password_file = "/etc/systole/smtp.password"
from = "systole <systole@example.org>"
to   = ["dba@example.org", "on-call@example.org"]
output_lines = 30

[[channel]]
name = "hook"
kind = "webhook"
url  = "http://[::1]:8080/alarm"

[[channel]]
name = "team"
kind = "slack"
url_file = "slack.url"

[[channel]]
name = "office"
kind = "teams"
url_file = "/etc/systole/teams.url"

[[channel]]
name = "sre-pager"
kind = "pagerduty"
key_file = "/etc/systole/pagerduty.key"

[[channel]]
name = "phone"
kind = "ntfy"
topic = "backups"
"#;

    #[test]
    fn each_kind_is_read_with_its_defaults() {
        let channels = read(ALL).expect("channels");
        let kinds: Vec<&str> = channels.iter().map(|channel| channel.target.kind()).collect();
        assert_eq!(kinds, ["mail", "webhook", "slack", "teams", "pagerduty", "ntfy"]);
        let Target::Mail(mail) = &channels[0].target else {
            panic!("mail")
        };
        assert_eq!(
            (mail.host.as_str(), mail.port, mail.security),
            ("mail.example.org", 465, Security::Tls)
        );
        assert_eq!(
            (channels[0].output_lines, channels[1].output_lines),
            (30, ALARM_OUTPUT_LINES_DEFAULT)
        );
        let Target::PagerDuty { url, .. } = &channels[4].target else {
            panic!("pagerduty")
        };
        assert_eq!(*url, Value::Here(PAGERDUTY_URL.into()));
        assert_eq!(channels[0].target.files().len(), 1);
        assert_eq!(channels[5].target.files().len(), 0);
        assert_eq!(read("format = 1").expect("none"), []);
    }

    #[test]
    fn what_is_wrong_names_the_channel_the_field_and_the_remedy() {
        let mail = "name = \"m\"\nkind = \"mail\"\nfrom = \"a@b\"\nto = [\"c@d\"]\n";
        for (channel, field, part) in [
            ("kind = \"slack\"".into(), "channel[0]: name", "on-call"),
            ("name = \"a\"\nkind = \"fax\"".into(), "channel a: kind", "pagerduty"),
            ("name = \"a\"\nkind = \"slack\"".into(), "channel a: url", "url_file"),
            (
                "name = \"a\"\nkind = \"slack\"\nurl = \"ftp://x\"".into(),
                "channel a: url",
                "https://",
            ),
            (
                "name = \"a\"\nkind = \"slack\"\nurl = \"https://x\"\nurl_file = \"f\"".into(),
                "channel a: url",
                "one of",
            ),
            (
                "name = \"a\"\nkind = \"slack\"\ntopic = \"x\"".into(),
                "channel a: topic",
                "url_file",
            ),
            (
                "name = \"a\"\nkind = \"pagerduty\"".into(),
                "channel a: key_file",
                "key_file",
            ),
            (
                "name = \"a\"\nkind = \"ntfy\"\noutput_lines = 1000".into(),
                "channel a: output_lines",
                "0 to",
            ),
            (mail.to_owned(), "channel m: smtp", "smtps://"),
            (
                format!("{mail}smtp = \"mail.example.org\""),
                "channel m: smtp",
                "smtps://",
            ),
            (format!("{mail}smtp = \"smtp://mail:0\""), "channel m: smtp", "port"),
            (
                format!("{mail}smtp = \"smtp://mail\"\nuser = \"u\""),
                "channel m: password_file",
                "together",
            ),
            (
                format!("{mail}smtp = \"smtp://mail\"\nuser = \"u\"\npassword_file = \"p\""),
                "channel m: smtp",
                "read the password",
            ),
            (
                "name = \"m\"\nkind = \"mail\"\nsmtp = \"smtp://x\"\nfrom = \"nobody\"\nto = [\"c@d\"]".into(),
                "channel m: from",
                "nobody",
            ),
        ] {
            let error = read(&format!("[[channel]]\n{channel}")).expect_err(&channel);
            assert_eq!(error.field, field, "{error}");
            assert!(error.message.contains(part), "{error}");
        }
        let twice = format!("[[channel]]\n{mail}smtp = \"smtp://x\"\n[[channel]]\n{mail}smtp = \"smtp://x\"");
        assert!(read(&twice).expect_err("twice").message.contains("twice"));
        assert!(
            read("[[channel]]\nnmae = 1")
                .expect_err("unknown")
                .message
                .contains("line 2")
        );
        assert!(
            read("[[channel]]\npassword = \"x\"").is_err(),
            "a secret has no place here"
        );
        // Here a password is read by nobody else.
        let local = format!("[[channel]]\n{mail}smtp = \"smtp://127.0.0.1:2525\"\nuser = \"u\"\npassword_file = \"p\"");
        assert!(read(&local).is_ok());
    }
}
