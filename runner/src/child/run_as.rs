//! As whom a task runs: from names to the numbers that the kernel takes. Asks the user database of the host, which must
//! not be done in the child. Changes nothing.

use super::fork::Identity;
use crate::host::Account;
use nix::unistd::{Gid, Group, Uid, User, geteuid, getgrouplist};
use std::ffi::CString;
use std::path::PathBuf;
use systole_shared::task::run_as::account_number;

/// Another user than the runner's own.
#[derive(Clone, Debug)]
pub struct RunAs {
    pub identity: Identity,
    /// The main group, where it was named and the user is not in it.
    pub foreign_group: Option<u32>,
    /// For the environment.
    pub account: Account,
}

impl RunAs {
    /// What holds on a host without a policy. An error is a sentence for a person.
    pub fn is_not_root(&self, host: &str) -> Result<(), String> {
        if self.identity.uid == 0 {
            return Err(format!(
                "user {} on {host} has the number 0, and no task is started as root by name unless the host's policy allows it (allow.root); name another user",
                self.account.name.display()
            ));
        }
        Ok(())
    }
}

/// An error is a sentence for a person. `group`: instead of the user's main group.
pub fn resolve(user: &str, group: Option<&str>, host: &str) -> Result<RunAs, String> {
    if !geteuid().is_root() {
        return Err("this runner cannot start tasks as another user: it does not run as root".into());
    }
    let (uid, entry) = find_user(user, host)?;
    let gid = match (group, &entry) {
        (Some(group), _) => find_group(group, host)?,
        (None, Some(entry)) => entry.gid,
        (None, None) => {
            return Err(format!(
                "user {user} is not in the user database of {host}, so its group is not known; give a group too"
            ));
        }
    };
    let read =
        |error| format!("the groups of user {user} on {host} cannot be read: {error}; try again, or use another host");
    let (groups, is_member) = match &entry {
        None => (vec![gid], false),
        Some(entry) if gid == entry.gid => (groups_of(entry, gid).map_err(read)?, true),
        Some(entry) => {
            let own = groups_of(entry, entry.gid).map_err(read)?;
            (groups_of(entry, gid).map_err(read)?, own.contains(&gid))
        }
    };
    Ok(RunAs {
        identity: Identity {
            uid: uid.as_raw(),
            gid: gid.as_raw(),
            groups: groups.into_iter().map(Gid::as_raw).collect(),
        },
        foreign_group: (!is_member).then_some(gid.as_raw()),
        account: match entry {
            Some(entry) => Account {
                name: entry.name.into(),
                home: entry.dir,
            },
            None => Account {
                name: user.into(),
                home: PathBuf::from("/"),
            },
        },
    })
}

/// Digits alone are a number, which needs no entry.
fn find_user(user: &str, host: &str) -> Result<(Uid, Option<User>), String> {
    let (number, found) = match account_number(user) {
        Some(number) => {
            let uid = Uid::from_raw(
                number
                    .filter(|&n| n != u32::MAX)
                    .ok_or_else(|| none("user", user, host))?,
            );
            (Some(uid), User::from_uid(uid))
        }
        None => (None, User::from_name(user)),
    };
    match (found, number) {
        (Ok(Some(entry)), _) => Ok((entry.uid, Some(entry))),
        (Ok(None), Some(uid)) => Ok((uid, None)),
        (Ok(None), None) => Err(none("user", user, host)),
        (Err(errno), _) => Err(unreadable("user", user, host, errno)),
    }
}

fn find_group(group: &str, host: &str) -> Result<Gid, String> {
    if let Some(number) = account_number(group) {
        let number = number.filter(|&n| n != u32::MAX);
        return number.map(Gid::from_raw).ok_or_else(|| none("group", group, host));
    }
    match Group::from_name(group) {
        Ok(Some(entry)) => Ok(entry.gid),
        Ok(None) => Err(none("group", group, host)),
        Err(errno) => Err(unreadable("group", group, host, errno)),
    }
}

fn groups_of(entry: &User, gid: Gid) -> Result<Vec<Gid>, String> {
    let name = CString::new(entry.name.as_str()).map_err(|error| error.to_string())?;
    getgrouplist(&name, gid).map_err(|errno| errno.desc().to_owned())
}

fn none(what: &str, name: &str, host: &str) -> String {
    format!("there is no {what} {name} on {host}; name one that exists there, or use --runner with a host that has it")
}

fn unreadable(what: &str, name: &str, host: &str, errno: nix::errno::Errno) -> String {
    format!(
        "{what} {name} cannot be looked up on {host} ({}); try again, or use another host",
        errno.desc()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(user: &str, group: Option<&str>) -> String {
        resolve(user, group, "h").unwrap_err()
    }

    #[test]
    fn only_root_may_become_somebody_else() {
        if !geteuid().is_root() {
            assert_eq!(
                refused("nobody", None),
                "this runner cannot start tasks as another user: it does not run as root"
            );
            println!("the rest of this test needs root");
            return;
        }
        for root in ["root", "0", "00"] {
            let found = resolve(root, None, "h").unwrap();
            assert!(
                found.is_not_root("h").unwrap_err().contains("has the number 0"),
                "{root}"
            );
        }
        assert!(refused("no-such-user", None).starts_with("there is no user no-such-user on h; "));
        assert!(refused("nobody", Some("no-such-group")).starts_with("there is no group no-such-group on h; "));
        assert!(refused("4294967295", Some("1")).starts_with("there is no user "));
        assert!(refused("3999999999", None).ends_with("give a group too"));
        assert!(resolve("nobody", None, "h").unwrap().is_not_root("h").is_ok());
        let number = resolve("3999999999", Some("7"), "h").unwrap();
        assert_eq!(number.foreign_group, Some(7));
        assert_eq!(
            (number.identity.uid, number.identity.gid, number.identity.groups),
            (3_999_999_999, 7, vec![7])
        );
        assert_eq!(resolve("nobody", None, "h").unwrap().foreign_group, None);
        let nobody = resolve("nobody", Some("7"), "h").unwrap();
        assert_eq!(nobody.foreign_group, Some(7));
        assert_eq!((nobody.account.name.to_str(), nobody.identity.gid), (Some("nobody"), 7));
        assert!(nobody.identity.groups.contains(&7) && !nobody.identity.groups.contains(&0));
    }
}
