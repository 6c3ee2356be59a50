//! Reads a policy file. Whoever may write it, or put another in its place, decides what runs here: that may only be root and
//! the runner's own user.

use super::{Bounds, Policy};
use serde::Deserialize;
use serde::de::{Deserializer, Error as _};
use std::fs::{File, Metadata};
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use systole_shared::limits::POLICY_BYTES_MAX;
use systole_shared::task::Limits;
use systole_shared::task::limits::{exact_bytes, parse_bytes, parse_cpus};

/// Used when it exists and no other is named.
pub const DEFAULT: &str = "/etc/systole/runner.toml";

/// `None`: this host has no policy. An error is a sentence for a person.
pub fn load(named: Option<&Path>) -> Result<Option<Policy>, String> {
    let path = named.unwrap_or(Path::new(DEFAULT));
    let unusable = |why: String| format!("the policy {} cannot be used: {why}", path.display());
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound && named.is_none() => return Ok(None),
        Err(error) => return Err(unusable(error.to_string())),
        Ok(file) => file,
    };
    let meta = file.metadata().map_err(|error| unusable(error.to_string()))?;
    if !meta.is_file() {
        return Err(unusable("it is not a file".into()));
    }
    let folder =
        std::fs::canonicalize(path).and_then(|real| std::fs::metadata(real.parent().unwrap_or(Path::new("/"))));
    let folder = folder.map_err(|error| unusable(error.to_string()))?;
    check_owner(&meta, false).map_err(|why| unusable(format!("the file {why}")))?;
    check_owner(&folder, true).map_err(|why| unusable(format!("its folder {why}")))?;
    let mut text = String::new();
    match file.take(POLICY_BYTES_MAX + 1).read_to_string(&mut text) {
        Ok(length) if length as u64 > POLICY_BYTES_MAX => {
            return Err(unusable(format!("it has more than {}", exact_bytes(POLICY_BYTES_MAX))));
        }
        Ok(_) => {}
        Err(error) => return Err(unusable(error.to_string())),
    }
    parse(&text, path).map(Some)
}

fn check_owner(meta: &Metadata, is_folder: bool) -> Result<(), String> {
    let own = nix::unistd::geteuid().as_raw();
    if meta.uid() != 0 && meta.uid() != own {
        return Err(format!(
            "belongs to user {}; it must be root's or the runner's own",
            meta.uid()
        ));
    }
    // In a folder such as /tmp nobody replaces the files of others.
    let sticky = is_folder && meta.mode() & 0o1000 != 0;
    if meta.mode() & 0o022 != 0 && !sticky {
        return Err("can be written by others; chmod go-w it".into());
    }
    Ok(())
}

/// The error names the line and what stands there.
pub fn parse(text: &str, path: &Path) -> Result<Policy, String> {
    let shown = path.display();
    let mut policy: Policy = toml::from_str(text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start.min(text.len()));
        let before = text.get(..at).unwrap_or_default();
        let begin = before.rfind('\n').map_or(0, |newline| newline + 1);
        let line = text[begin..].lines().next().unwrap_or_default().trim();
        format!(
            "{shown}, line {}, {line:?}: {}",
            before.matches('\n').count() + 1,
            error.message().trim().replace('\n', "; ")
        )
    })?;
    check_bounds(&policy).map_err(|(key, what)| format!("{shown}, {key}: {what}"))?;
    path.clone_into(&mut policy.path);
    Ok(policy)
}

/// What one value alone cannot tell.
fn check_bounds(policy: &Policy) -> Result<(), (String, String)> {
    let (max, default) = (&policy.max, &policy.default);
    let above = |key: &str, default: Option<u64>, max: Option<u64>| match (default, max) {
        (Some(default), Some(max)) if default > max => {
            Err((format!("default.{key}"), format!("is more than max.{key}")))
        }
        _ => Ok(()),
    };
    above(
        "open_files",
        default.open_files.map(u64::from),
        max.open_files.map(u64::from),
    )?;
    above("core", default.core, max.core)?;
    above("file", default.file, max.file)?;
    above("memory", default.memory, max.memory)?;
    above("cpus", default.cpus.map(u64::from), max.cpus.map(u64::from))?;
    above("pids", default.pids.map(u64::from), max.pids.map(u64::from))?;
    for (table, bounds) in [("max", max), ("default", default)] {
        let limits = as_limits(bounds);
        limits.validate().map_err(|invalid| {
            let field = invalid.field.trim_start_matches("limits.").trim_end_matches("_bytes");
            (format!("{table}.{field}"), invalid.message)
        })?;
    }
    Ok(())
}

fn as_limits(bounds: &Bounds) -> Limits {
    Limits {
        open_files: bounds.open_files,
        core_bytes: bounds.core.unwrap_or(0),
        file_bytes: bounds.file,
        memory_bytes: bounds.memory,
        cpu_millis: bounds.cpus,
        pids: bounds.pids,
        ..Limits::default()
    }
}

/// `"512M"`, or a number of bytes.
pub fn bytes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Size {
        Text(String),
        Bytes(u64),
    }
    match Size::deserialize(deserializer) {
        Ok(Size::Text(text)) => parse_bytes(&text).map(Some).map_err(D::Error::custom),
        Ok(Size::Bytes(bytes)) => Ok(Some(bytes)),
        Err(_) => Err(D::Error::custom(
            "is no size; write for example \"512M\", \"2G\", or a number of bytes",
        )),
    }
}

/// `2`, `0.5`, or `"0.5"`.
pub fn cpus<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Cpus {
        Whole(u32),
        Part(f64),
        Text(String),
    }
    let text = match Cpus::deserialize(deserializer) {
        Ok(Cpus::Whole(whole)) => whole.to_string(),
        Ok(Cpus::Part(part)) => part.to_string(),
        Ok(Cpus::Text(text)) => text,
        Err(_) => {
            return Err(D::Error::custom(
                "is no number of processors; write for example 2 or 0.5",
            ));
        }
    };
    parse_cpus(&text).map(Some).map_err(D::Error::custom)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn a_bad_file_is_told_with_line_and_key() {
        for (text, expected) in [
            (
                "[allow]\nuser = [\"x\"]",
                "/p, line 2, \"user = [\\\"x\\\"]\": unknown field `user`, expected one of ",
            ),
            (
                "\n\n[max]\nfile = \"1X\"",
                "/p, line 4, \"file = \\\"1X\\\"\": \"1X\" is not a size; ",
            ),
            ("[max]\nfile = true", "/p, line 2, \"file = true\": is no size; "),
            ("[max]\nopen_files = -1", "/p, line 2, \"open_files = -1\": "),
            (
                "[allow]\nprograms = [\"x\"]",
                "/p, line 2, \"programs = [\\\"x\\\"]\": \"x\" is no absolute path",
            ),
            ("[allow]\ndirs = [\"/a/../b\"]", "/p, line 2, "),
            (
                "[allow]\nenv = [\"A*B\"]",
                "/p, line 2, \"env = [\\\"A*B\\\"]\": \"A*B\" is neither ",
            ),
            ("[allow]\nshell = \"no\"", "/p, line 2, \"shell = \\\"no\\\"\": "),
            (
                "[max]\ncpus = \"many\"",
                "/p, line 2, \"cpus = \\\"many\\\"\": \"many\" is no number of processors",
            ),
            ("[default]\nmemory = 5", "/p, default.memory: 5 is outside "),
            (
                "[max]\npids = 1\n[default]\npids = 2",
                "/p, default.pids: is more than max.pids",
            ),
            ("[allow\n", "/p, line 1, "),
            ("allow = 5", "/p, line 1, \"allow = 5\": "),
            ("[max]\nopen_files = 15", "/p, max.open_files: 15 is outside "),
            (
                "[max]\nfile = 1\n[default]\nfile = \"2K\"",
                "/p, default.file: is more than max.file",
            ),
        ] {
            let error = parse(text, Path::new("/p")).expect_err(text);
            assert!(error.starts_with(expected), "{error}\n{expected}");
        }
        assert_eq!(
            parse("", Path::new("/p")).unwrap().allow,
            super::super::Allow::default()
        );
    }

    #[test]
    fn the_example_is_a_policy() {
        let text = include_str!("../../../deploy/runner.toml.example");
        let policy = parse(text, Path::new("/p")).unwrap();
        assert!(!policy.allow.shell && policy.allow.env_files.len() == 1);
    }

    #[test]
    fn a_file_that_others_may_change_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("runner.toml");
        let mode = |path: &Path, mode| std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        assert!(load(Some(&path)).unwrap_err().contains("No such file"));
        std::fs::write(&path, "[allow]\nshell = false\n").unwrap();
        for bits in [0o600, 0o644, 0o640] {
            mode(&path, bits);
            assert!(!load(Some(&path)).unwrap().unwrap().allow.shell, "{bits:o}");
        }
        for bits in [0o664, 0o646, 0o666] {
            mode(&path, bits);
            let refused = load(Some(&path)).unwrap_err();
            assert!(refused.contains("the file can be written by others"), "{refused}");
        }
        mode(&path, 0o644);
        mode(dir.path(), 0o777);
        assert!(load(Some(&path)).unwrap_err().contains("its folder can be written"));
        mode(dir.path(), 0o1777);
        assert!(load(Some(&path)).is_ok());
        assert!(load(Some(dir.path())).unwrap_err().contains("not a file"));
        if nix::unistd::geteuid().is_root() {
            std::os::unix::fs::chown(&path, Some(12_345), None).unwrap();
            assert!(load(Some(&path)).unwrap_err().contains("belongs to user 12345"));
        }
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "#".repeat(1 << 20) + "\n").unwrap();
        mode(dir.path(), 0o700);
        assert!(load(Some(&path)).unwrap_err().contains("more than 1M"));
    }
}
