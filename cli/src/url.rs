//! The address of a scheduler as people give it.

use std::fmt;
use tonic::transport::Uri;

/// Where a scheduler listens when nobody says otherwise.
pub const DEFAULT_PORT: u16 = 7410;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    text: String,
    pub secure: bool,
    /// Without the brackets of an IPv6 address.
    pub host: String,
    pub port: u16,
}

impl Url {
    /// Parses `http://HOST[:PORT]` or `https://HOST[:PORT]`; the error says what to write.
    pub fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if let Some((_, rest)) = text.split_once("://")
            && (rest.is_empty() || rest.starts_with(['/', ':', '?']))
        {
            return Err(format!(
                "{text:?} names no host; write for example http://127.0.0.1:{DEFAULT_PORT}"
            ));
        }
        let text = text.trim_end_matches('/');
        let Some((scheme, rest)) = text.split_once("://") else {
            let example = if text.is_empty() { "127.0.0.1:7410" } else { text };
            return Err(format!(
                "{text:?} has no scheme; write http://{example}, or https://{example} for TLS"
            ));
        };
        let secure = match scheme {
            "http" => false,
            "https" => true,
            other => {
                return Err(format!(
                    "scheme {other:?} is not known; write http://{rest} or https://{rest}"
                ));
            }
        };
        let bad = || format!("{text:?} is no address of a scheduler; write for example http://127.0.0.1:7410");
        let uri: Uri = text.parse().map_err(|_| bad())?;
        let authority = uri.authority().ok_or_else(bad)?;
        if authority.as_str().contains('@') {
            return Err("a user name has no place in the address; the token comes from a file".into());
        }
        if !matches!(uri.path(), "" | "/") || uri.query().is_some() {
            return Err(format!("{text:?} has a path; write {scheme}://{authority} alone"));
        }
        let host = authority
            .host()
            .trim_start_matches('[')
            .trim_end_matches(']')
            .to_owned();
        if host.is_empty() {
            return Err(bad());
        }
        let port = match authority.as_str().strip_prefix(authority.host()) {
            Some("") => {
                if secure {
                    443
                } else {
                    80
                }
            }
            // A number out of range is no port.
            _ => authority.port_u16().ok_or_else(bad)?,
        };
        Ok(Self {
            text: format!("{scheme}://{authority}"),
            secure,
            host,
            port,
        })
    }

    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The same place, over TLS.
    pub fn with_tls(self) -> Self {
        let text = match self.text.strip_prefix("http://") {
            Some(place) => format!("https://{place}"),
            None => self.text,
        };
        Self {
            text,
            secure: true,
            ..self
        }
    }

    pub fn local_default() -> Self {
        Self {
            text: format!("http://127.0.0.1:{DEFAULT_PORT}"),
            secure: false,
            host: "127.0.0.1".into(),
            port: DEFAULT_PORT,
        }
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_host_and_port() {
        for (text, secure, host, port) in [
            ("http://127.0.0.1:7410", false, "127.0.0.1", 7410),
            ("https://etl.example.org/", true, "etl.example.org", 443),
            ("http://[::1]:7411", false, "::1", 7411),
            (" http://jump:80 ", false, "jump", 80),
        ] {
            let url = Url::parse(text).expect(text);
            assert_eq!(
                (url.secure, url.host.as_str(), url.port),
                (secure, host, port),
                "{text}"
            );
        }
        assert_eq!(Url::parse("http://127.0.0.1:7410"), Ok(Url::local_default()));
    }

    #[test]
    fn a_missing_scheme_is_an_error_that_says_what_to_write() {
        let error = Url::parse("10.0.0.5:7410").expect_err("no scheme");
        assert!(error.contains("write http://10.0.0.5:7410"), "{error}");
    }

    #[test]
    fn a_missing_host_is_named() {
        for text in ["http://", "https://", "http:///", "http://:7410"] {
            let error = Url::parse(text).expect_err("no host");
            assert!(error.contains("names no host; write for example http://"), "{error}");
        }
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for text in [
            "",
            "localhost",
            "ftp://x:1",
            "http://",
            "http://u:p@h:1",
            "http://h:1/x",
            "http://h:1?x=1",
            "http://h:99999",
            "http://:7410",
            "http://h:",
            "http://a b:1",
        ] {
            assert!(Url::parse(text).is_err(), "{text:?}");
        }
    }
}
