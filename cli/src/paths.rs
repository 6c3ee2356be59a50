//! Where things are on this machine: data, and the token files that are found by the scheduler's address.

use crate::exit_code;
use crate::failure::{Failure, io_cause};
use crate::url::Url;
use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use systole_shared::error::Code;

/// A variable that is set to something. Set and empty is the same as not set.
pub fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// `XDG_…` where it is an absolute path, else the usual folder under the home directory.
fn base_dir(xdg: Option<OsString>, home: Option<OsString>, under_home: &str) -> Option<PathBuf> {
    xdg.map(PathBuf::from)
        .filter(|path| path.is_absolute())
        .or_else(|| home.map(|home| PathBuf::from(home).join(under_home)))
        .map(|path| path.join("systole"))
}

/// Data of `up` and `runner`.
pub fn data_dir() -> Result<PathBuf, Failure> {
    base_dir(variable("XDG_DATA_HOME"), variable("HOME"), ".local/share")
        .ok_or_else(|| Failure::usage("neither HOME nor XDG_DATA_HOME is set; name a folder with --data-dir"))
}

/// The named clusters of this user.
pub fn contexts_file() -> Option<PathBuf> {
    base_dir(variable("XDG_CONFIG_HOME"), variable("HOME"), ".config").map(|path| path.join("contexts.json"))
}

/// Tokens of the scheduler at this host and port.
fn token_dir(host: &str, port: u16) -> Option<PathBuf> {
    let host = if host == "localhost" { "127.0.0.1" } else { host };
    base_dir(variable("XDG_CONFIG_HOME"), variable("HOME"), ".config")
        .map(|path| path.join("tokens").join(format!("{host}_{port}")))
}

/// The authority that a scheduler of this user with a TLS of its own has left for these addresses.
pub fn found_ca(urls: &[Url]) -> Option<PathBuf> {
    urls.iter()
        .filter_map(|url| token_dir(&url.host, url.port))
        .map(|dir| dir.join(systole_scheduler::tls::CA_FILE))
        .find(|path| path.is_file())
}

/// Where a scheduler that listens at this address leaves its tokens, so that clients of this machine find them.
pub fn token_dir_of(listen: SocketAddr) -> Result<PathBuf, Failure> {
    if listen.port() == 0 {
        return Err(Failure::usage(
            "--listen with port 0 takes any free port, so no folder can be named after it; name one with --token-dir",
        ));
    }
    let host = reachable(listen.ip()).to_string();
    token_dir(&host, listen.port())
        .ok_or_else(|| Failure::usage("neither HOME nor XDG_CONFIG_HOME is set; name a folder with --token-dir"))
}

/// The address by which this machine reaches a listener: a wildcard is no destination.
pub fn reachable(ip: IpAddr) -> IpAddr {
    if ip.is_unspecified() {
        IpAddr::V4(Ipv4Addr::LOCALHOST)
    } else {
        ip
    }
}

/// Which token a command needs.
#[derive(Clone, Copy, Debug)]
pub enum Role {
    Admin,
    Runner,
}

impl Role {
    fn file_name(self) -> &'static str {
        match self {
            Role::Admin => "admin.token",
            Role::Runner => "runner.token",
        }
    }

    fn remedy(self) -> &'static str {
        match self {
            Role::Admin => "or name another file with SYSTOLE_TOKEN_FILE",
            Role::Runner => "or name another file with --token-file",
        }
    }
}

/// Reads the token: from the file that was named, else from the folder of the first address that has one.
/// `Ok(Err(…))` is the failure for "no such file", which a caller may replace by a better one.
pub fn find_token(named: Option<&Path>, urls: &[Url], role: Role) -> Result<Result<String, Failure>, Failure> {
    if let Some(path) = named {
        return match read_token(path)? {
            Some(token) => Ok(Ok(token)),
            None => Ok(Err(Failure::refused(format!(
                "token file {} does not exist",
                path.display()
            ))
            .with_code(Code::TokenMissing))),
        };
    }
    let mut looked = Vec::new();
    for url in urls {
        let Some(dir) = token_dir(&url.host, url.port) else {
            continue;
        };
        let path = dir.join(role.file_name());
        if let Some(token) = read_token(&path)? {
            return Ok(Ok(token));
        }
        looked.push(path.display().to_string());
    }
    let addresses = urls.iter().map(Url::as_str).collect::<Vec<_>>().join(", ");
    let place = match looked.as_slice() {
        [] => "neither HOME nor XDG_CONFIG_HOME is set".to_owned(),
        paths => format!("{} does not exist", paths.join(" or ")),
    };
    Ok(Err(Failure::refused(format!(
        "no token for {addresses}: {place}. The scheduler wrote it on its own machine at its first start; copy it here (chmod 600), {}.",
        role.remedy()
    ))
    .with_code(Code::TokenMissing)))
}

/// `None` when there is no such file. A token that others can read is refused, as ssh refuses such keys.
pub fn read_token(path: &Path) -> Result<Option<String>, Failure> {
    let shown = path.display();
    let metadata = match std::fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => {
            return Err(Failure::refused(format!(
                "token file {shown} cannot be read: {}",
                io_cause(&error)
            )));
        }
    };
    if !metadata.is_file() {
        return Err(Failure::refused(format!(
            "{shown} is not a file; a token file holds one line"
        )));
    }
    let mode = metadata.mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(Failure::refused(format!(
            "token file {shown} is open to other users (mode {mode:03o}). Make it yours alone: chmod 600 {shown}"
        )));
    }
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            let owner = user_name(metadata.uid());
            return Err(Failure::refused(format!(
                "{shown} is readable by user {owner} only. sudo -u {owner}, or a token of your own."
            )));
        }
        Err(error) => {
            return Err(Failure::refused(format!(
                "token file {shown} cannot be read: {}",
                io_cause(&error)
            )));
        }
    };
    let token = text.trim();
    if token.is_empty() || !token.bytes().all(|b| b.is_ascii_graphic()) {
        return Err(Failure::refused(format!(
            "token file {shown} does not hold a token: one line of visible ASCII is expected"
        )));
    }
    Ok(Some(token.to_owned()))
}

fn user_name(uid: u32) -> String {
    match nix::unistd::User::from_uid(nix::unistd::Uid::from_raw(uid)) {
        Ok(Some(user)) => user.name,
        _ => uid.to_string(),
    }
}

/// Makes a folder for this user alone. One that exists is left as it is.
pub fn make_private_dir(path: &Path, option: &str) -> Result<(), Failure> {
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(|error| {
            Failure::new(
                exit_code::USAGE,
                format!("{option}: {} cannot be made: {}", path.display(), io_cause(&error)),
            )
        })
}

/// Makes the data folder of a process that starts tasks, or takes one that nobody else can put files into or exchange: whoever can, decides
/// what runs, as which user, and what is reported of it.
pub fn make_data_dir(path: &Path) -> Result<(), Failure> {
    make_private_dir(path, "--data-dir")?;
    let refused = |folder: &Path, why: &str| {
        Failure::usage(format!(
            "--data-dir: {}: the folder {} {why}",
            path.display(),
            folder.display()
        ))
    };
    let unreadable = |error: std::io::Error| refused(path, &format!("cannot be looked at: {}", io_cause(&error)));
    let real = path.canonicalize().map_err(unreadable)?;
    let me = Me {
        uid: nix::unistd::geteuid().as_raw(),
        groups: own_groups(),
    };
    let meta = std::fs::metadata(&real).map_err(unreadable)?;
    let (owner, group, mode) = (meta.uid(), meta.gid(), meta.mode() & 0o7777);
    match judge_folder(owner, group, mode, &me, false) {
        Access::Closed => {}
        Access::Own(closed) => {
            use std::os::unix::fs::PermissionsExt as _;
            std::fs::set_permissions(&real, std::fs::Permissions::from_mode(closed)).map_err(|error| {
                refused(
                    &real,
                    &format!(
                        "can be written by others (mode {mode:04o}), which cannot be changed: {}",
                        io_cause(&error)
                    ),
                )
            })?;
            crate::output::note(&crate::output::text::clean(&format!(
                "{} could be written by others (mode {mode:04o}); it is {closed:04o} now",
                real.display()
            )));
        }
        Access::Open(why) => return Err(refused(&real, &with_remedy(&real, owner, mode, &me, why))),
    }
    if let Some(parent) = real.parent() {
        let meta = std::fs::metadata(parent).map_err(unreadable)?;
        let (owner, group, mode) = (meta.uid(), meta.gid(), meta.mode() & 0o7777);
        if let Access::Open(why) = judge_folder(owner, group, mode, &me, true) {
            return Err(refused(parent, &with_remedy(parent, owner, mode, &me, why)));
        }
    }
    Ok(())
}

/// Who this process is.
struct Me {
    uid: u32,
    groups: Vec<u32>,
}

fn own_groups() -> Vec<u32> {
    let mut groups = vec![nix::unistd::getegid().as_raw()];
    groups.extend(
        nix::unistd::getgroups()
            .unwrap_or_default()
            .into_iter()
            .map(nix::unistd::Gid::as_raw),
    );
    groups
}

#[derive(Debug, PartialEq, Eq)]
enum Access {
    /// For this user and root alone.
    Closed,
    /// Ours, and open; closed it has this mode.
    Own(u32),
    Open(Why),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    Owner,
    Mode,
    Shared,
}

/// Who else may put files into a folder, or, of the folder around it, exchange it.
fn judge_folder(owner: u32, group: u32, mode: u32, me: &Me, is_around: bool) -> Access {
    if owner != 0 && owner != me.uid {
        return Access::Open(Why::Owner);
    }
    // Homes are often open to the group of their user alone, and a mounted volume to the group that it is meant for.
    let by_group = me.groups.contains(&group) && (is_around || owner != me.uid);
    let others = if by_group { 0o002 } else { 0o022 };
    if mode & others == 0 {
        return Access::Closed;
    }
    match (mode & 0o1000 != 0, is_around) {
        // In a folder such as /tmp nobody replaces the files of others.
        (true, true) => Access::Closed,
        (true, false) => Access::Open(Why::Shared),
        (false, false) if owner == me.uid => Access::Own(mode & !0o022),
        (false, _) => Access::Open(Why::Mode),
    }
}

fn with_remedy(folder: &Path, owner: u32, mode: u32, me: &Me, why: Why) -> String {
    let shown = folder.display();
    let facts = format!("belongs to {}, mode {mode:04o}", user_name(owner));
    match why {
        Why::Owner => format!(
            "{facts}; it must be this user's or root's: run this as {}, or: chown {} '{shown}'",
            user_name(owner),
            user_name(me.uid)
        ),
        Why::Mode => format!("{facts}, so that others can exchange what is in it: chmod go-w '{shown}'"),
        Why::Shared => {
            format!("{facts}, is shared by all users; give a folder within it: --data-dir '{shown}/systole'")
        }
    }
}

/// `~/…` for paths under the home directory.
pub fn with_tilde(path: &Path) -> String {
    match variable("HOME").and_then(|home| path.strip_prefix(home).ok().map(Path::to_path_buf)) {
        Some(rest) => format!("~/{}", rest.display()),
        None => path.display().to_string(),
    }
}

/// What to type to start this very program again: `systole` if the PATH leads here, else the shortest path.
pub fn how_to_call_me() -> String {
    let Ok(me) = std::env::current_exe() else {
        return "systole".into();
    };
    let on_path = variable("PATH").is_some_and(|path| {
        std::env::split_paths(&path)
            .map(|dir| dir.join("systole"))
            .find(|file| file.is_file())
            .and_then(|file| file.canonicalize().ok())
            .is_some_and(|file| Some(file) == me.canonicalize().ok())
    });
    if on_path {
        return "systole".into();
    }
    match std::env::current_dir() {
        Ok(here) => shortest_path(&me, &here),
        Err(_) => me.display().to_string(),
    }
}

fn shortest_path(file: &Path, here: &Path) -> String {
    match file.strip_prefix(here) {
        // A name without '/' would be looked up in the PATH.
        Ok(rest) if rest.components().count() == 1 => format!("./{}", rest.display()),
        Ok(rest) => rest.display().to_string(),
        Err(_) => file.display().to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    struct Dir(PathBuf);

    impl Dir {
        fn new() -> Self {
            let path = std::env::temp_dir().join(format!("systole-paths-{}", uuid::Uuid::new_v4()));
            std::fs::create_dir(&path).expect("made");
            Self(path)
        }

        fn file(&self, name: &str, text: &str, mode: u32) -> PathBuf {
            let path = self.0.join(name);
            std::fs::write(&path, text).expect("written");
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("set");
            path
        }
    }

    impl Drop for Dir {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn folders_follow_xdg() {
        let home = || Some(OsString::from("/home/ann"));
        assert_eq!(
            base_dir(None, home(), ".config"),
            Some("/home/ann/.config/systole".into())
        );
        assert_eq!(
            base_dir(Some("/x".into()), home(), ".config"),
            Some("/x/systole".into())
        );
        assert_eq!(
            base_dir(Some("relative".into()), home(), ".config"),
            Some("/home/ann/.config/systole".into())
        );
        assert_eq!(base_dir(None, None, ".config"), None);
    }

    #[test]
    fn a_private_token_is_read_and_an_open_one_refused() {
        let dir = Dir::new();
        assert_eq!(
            read_token(&dir.file("good", "abc_123\n", 0o600)),
            Ok(Some("abc_123".into()))
        );
        assert_eq!(read_token(&dir.0.join("missing")), Ok(None));
        for mode in [0o640, 0o604, 0o644] {
            let failure = read_token(&dir.file("open", "abc", mode)).expect_err("refused");
            assert_eq!(failure.exit, 4);
            assert!(failure.message.contains("chmod 600"), "{failure}");
        }
        assert!(read_token(&dir.file("empty", "\n", 0o600)).is_err());
        assert!(read_token(&dir.file("two", "a b", 0o600)).is_err());
        assert!(read_token(&dir.0).is_err());
    }

    #[test]
    fn a_folder_that_others_can_write_is_no_data_folder() {
        use Access::{Closed, Open, Own};
        let me = Me {
            uid: 1000,
            groups: vec![1000, 50],
        };
        for (owner, group, mode, itself, around) in [
            (1000, 1000, 0o700, Closed, Closed),
            (1000, 1000, 0o755, Closed, Closed),
            (1000, 1000, 0o775, Own(0o755), Closed),
            (1000, 7, 0o2775, Own(0o2755), Open(Why::Mode)),
            (1000, 1000, 0o777, Own(0o755), Open(Why::Mode)),
            (0, 0, 0o755, Closed, Closed),
            (0, 50, 0o2775, Closed, Closed),
            (0, 0, 0o775, Open(Why::Mode), Open(Why::Mode)),
            (0, 0, 0o777, Open(Why::Mode), Open(Why::Mode)),
            (0, 0, 0o1777, Open(Why::Shared), Closed),
            (1001, 1000, 0o700, Open(Why::Owner), Open(Why::Owner)),
            (1001, 1000, 0o1777, Open(Why::Owner), Open(Why::Owner)),
        ] {
            assert_eq!(judge_folder(owner, group, mode, &me, false), itself, "{owner} {mode:o}");
            assert_eq!(judge_folder(owner, group, mode, &me, true), around, "{owner} {mode:o}");
        }
    }

    #[test]
    fn an_own_data_folder_is_closed_and_one_in_an_open_folder_refused() {
        let dir = Dir::new();
        let open = |path: &Path, mode| {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("set");
        };
        let mode = |path: &Path| std::fs::metadata(path).expect("there").mode() & 0o7777;
        open(&dir.0, 0o700);
        let data = dir.0.join("a/data");
        make_data_dir(&data).expect("made");
        assert_eq!(mode(&data), 0o700);
        open(&data, 0o777);
        make_data_dir(&data).expect("closed");
        assert_eq!(mode(&data), 0o755);
        open(&dir.0.join("a"), 0o777);
        let failure = make_data_dir(&data).expect_err("open");
        assert_eq!(failure.exit, 2);
        for word in ["/a belongs to ", "mode 0777", "chmod go-w '"] {
            assert!(failure.message.contains(word), "{word}: {failure}");
        }
        open(&dir.0.join("a"), 0o1777);
        make_data_dir(&data).expect("sticky");
        let failure = make_data_dir(&dir.0.join("a")).expect_err("shared");
        assert!(failure.message.contains("/a/systole'"), "{failure}");
    }

    #[test]
    fn a_missing_token_says_where_it_was_looked_for() {
        let dir = Dir::new();
        let failure = find_token(Some(&dir.0.join("none")), &[], Role::Admin)
            .expect("readable")
            .expect_err("missing");
        assert_eq!(failure.exit, 4);
        assert!(
            failure.to_string().contains("none does not exist. [AUTH_001]"),
            "{failure}"
        );
    }

    #[test]
    fn a_wildcard_is_reached_by_loopback() {
        for (ip, reached) in [
            ("0.0.0.0", "127.0.0.1"),
            ("::", "127.0.0.1"),
            ("10.0.0.5", "10.0.0.5"),
            ("::1", "::1"),
        ] {
            assert_eq!(reachable(ip.parse().expect("ip")).to_string(), reached);
        }
        assert_eq!(
            token_dir_of("127.0.0.1:0".parse().expect("address"))
                .expect_err("no folder")
                .exit,
            2
        );
    }

    #[test]
    fn the_path_that_works_is_shown() {
        let here = Path::new("/src/systole");
        assert_eq!(
            shortest_path(Path::new("/src/systole/target/release/systole"), here),
            "target/release/systole"
        );
        assert_eq!(shortest_path(Path::new("/src/systole/systole"), here), "./systole");
        assert_eq!(shortest_path(Path::new("/opt/systole"), here), "/opt/systole");
    }
}
