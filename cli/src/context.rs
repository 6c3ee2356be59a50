//! Named clusters of this user: where each is, whom to trust there, and which token to use. Kept in one file of the user's
//! configuration; it holds no secret itself.

use crate::args::Global;
use crate::failure::{Failure, io_cause};
use crate::paths;
use crate::url::Url;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use systole_shared::near::did_you_mean;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Contexts {
    /// The one that counts where nothing else is said.
    #[serde(default)]
    pub current: Option<String>,
    #[serde(default)]
    pub contexts: BTreeMap<String, Context>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Context {
    pub urls: Vec<String>,
    /// Absolute, as all paths in here: the command line is typed anywhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca: Option<PathBuf>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_file: Option<PathBuf>,
}

/// The context that a command goes by.
#[derive(Clone, Debug)]
pub struct Chosen {
    pub name: String,
    pub context: Context,
    /// Named for this very command: then variables of the environment are meant for something else.
    pub explicit: bool,
}

impl Contexts {
    pub fn load(path: &Path) -> Result<Self, Failure> {
        let bad = |reason: String| Failure::usage(format!("contexts: {}: {reason}", path.display()));
        match std::fs::read_to_string(path) {
            Ok(text) => serde_json::from_str(&text).map_err(|error| bad(error.to_string())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(bad(io_cause(&error))),
        }
    }

    /// Whole or not at all: two shells may do this at the same time.
    pub fn save(&self, path: &Path) -> Result<(), Failure> {
        let failure = |error: std::io::Error| {
            Failure::usage(format!(
                "contexts: {} cannot be written: {}",
                path.display(),
                io_cause(&error)
            ))
        };
        if let Some(folder) = path.parent() {
            paths::make_private_dir(folder, "contexts")?;
        }
        let temporary = path.with_extension(format!("{}.tmp", uuid::Uuid::new_v4().simple()));
        let text = serde_json::to_string_pretty(self).map_err(|error| Failure::unexpected(error.to_string()))?;
        let written = std::fs::File::create_new(&temporary)
            .and_then(|mut file| {
                writeln!(file, "{text}")?;
                file.sync_all()
            })
            .and_then(|()| std::fs::rename(&temporary, path));
        written.map_err(|error| {
            drop(std::fs::remove_file(&temporary));
            failure(error)
        })
    }

    pub fn get(&self, name: &str) -> Result<&Context, Failure> {
        self.contexts.get(name).ok_or_else(|| {
            let names: Vec<&str> = self.contexts.keys().map(String::as_str).collect();
            let known = match names.as_slice() {
                [] => "none is there; make one with `systole context add NAME --url URL`".to_owned(),
                names => format!("there are {}", names.join(", ")),
            };
            let meant = did_you_mean(name, names.iter().copied());
            Failure::usage(format!("no context {name:?} is known; {meant}{known}"))
        })
    }
}

/// Which one a command goes by: the option, then SYSTOLE_CONTEXT, then the current one. An address that is named,
/// by --url or SYSTOLE_URL, stands for itself; --context goes before SYSTOLE_URL.
pub fn chosen(global: &Global) -> Result<Option<Chosen>, Failure> {
    if !global.url.is_empty() {
        return Ok(None);
    }
    let explicit = global.context.is_some();
    if !explicit && paths::variable("SYSTOLE_URL").is_some() {
        return Ok(None);
    }
    let named = match &global.context {
        Some(name) => Some(name.clone()),
        None => paths::variable("SYSTOLE_CONTEXT").map(|name| name.to_string_lossy().into_owned()),
    };
    let Some(path) = paths::contexts_file() else {
        return match named {
            None => Ok(None),
            Some(_) => Err(Failure::usage(
                "neither HOME nor XDG_CONFIG_HOME is set, so there are no contexts",
            )),
        };
    };
    let contexts = Contexts::load(&path)?;
    let Some(name) = named.or_else(|| contexts.current.clone()) else {
        return Ok(None);
    };
    let context = contexts.get(&name)?.clone();
    Ok(Some(Chosen {
        name,
        context,
        explicit,
    }))
}

impl Chosen {
    pub fn urls(&self) -> Result<Vec<Url>, Failure> {
        let urls: Result<Vec<Url>, String> = self.context.urls.iter().map(|text| Url::parse(text)).collect();
        match urls {
            Ok(urls) if !urls.is_empty() => Ok(urls),
            Ok(_) => Err(Failure::usage(format!(
                "context {} has no address; make it anew",
                self.name
            ))),
            Err(error) => Err(Failure::usage(format!("context {}: {error}", self.name))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contexts_are_kept_and_a_name_that_is_not_known_is_told_with_those_that_are() {
        let path = std::env::temp_dir().join(format!("systole-contexts-{}/c.json", uuid::Uuid::new_v4()));
        assert_eq!(Contexts::load(&path), Ok(Contexts::default()));
        let mut contexts = Contexts::default();
        assert!(contexts.get("prod").expect_err("none").message.contains("context add"));
        contexts.contexts.insert(
            "prod".into(),
            Context {
                urls: vec!["https://h:1".into()],
                ..Context::default()
            },
        );
        contexts.current = Some("prod".into());
        contexts.save(&path).expect("saved");
        contexts.save(&path).expect("saved again");
        assert_eq!(Contexts::load(&path), Ok(contexts.clone()));
        assert!(
            contexts
                .get("pord")
                .expect_err("none")
                .message
                .contains("did you mean \"prod\"? there are prod")
        );
        std::fs::write(&path, "{").expect("written");
        assert_eq!(Contexts::load(&path).expect_err("bad").exit, 2);
        std::fs::remove_dir_all(path.parent().expect("folder")).expect("removed");
    }
}
