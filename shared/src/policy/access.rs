//! Who may do what: roles of tokens, and what a call needs.

use crate::error::Invalid;
use crate::limits::WORD_CHARS_MAX;
use std::fmt;

/// What a token is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Everything, tokens included.
    Admin,
    /// Sees everything, runs and cancels tasks, cordons runners.
    Operator,
    /// Sees everything, changes nothing.
    Viewer,
    /// Beats and uploads output; sees nothing but its own tasks.
    Runner,
}

impl Role {
    pub const ALL: [Role; 4] = [Role::Admin, Role::Operator, Role::Viewer, Role::Runner];

    pub fn name(self) -> &'static str {
        match self {
            Role::Admin => "admin",
            Role::Operator => "operator",
            Role::Viewer => "viewer",
            Role::Runner => "runner",
        }
    }

    /// `None` for a role of a later version: nobody here knows what it may do.
    pub fn parse(name: &str) -> Option<Role> {
        Role::ALL.into_iter().find(|role| role.name() == name)
    }

    /// Whether a token of this role may make a call that needs this.
    pub fn may(self, needs: Needs) -> bool {
        match needs {
            Needs::Nothing => true,
            Needs::View => matches!(self, Role::Admin | Role::Operator | Role::Viewer),
            Needs::Operate => matches!(self, Role::Admin | Role::Operator),
            Needs::Administer => self == Role::Admin,
            Needs::Run => matches!(self, Role::Admin | Role::Runner),
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What a call needs of its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Needs {
    /// Not even a token: health, for balancers.
    Nothing,
    /// Sees tasks, their output, runners, and who did what.
    View,
    /// Changes tasks and runners.
    Operate,
    /// Says who may do what.
    Administer,
    /// Runs tasks.
    Run,
}

impl Needs {
    pub const ALL: [Needs; 5] = [
        Needs::Nothing,
        Needs::View,
        Needs::Operate,
        Needs::Administer,
        Needs::Run,
    ];

    /// The roles that may, for a message: "operator or admin".
    pub fn roles(self) -> String {
        let mut names: Vec<&str> = Role::ALL
            .into_iter()
            .filter(|role| role.may(self))
            .map(Role::name)
            .collect();
        names.reverse();
        names.join(" or ")
    }
}

/// A name of a token: who somebody is in everything that they do.
pub fn check_token_name(name: &str, field: &str) -> Result<(), Invalid> {
    let good = |c: char| c.is_ascii_alphanumeric() || "._-@".contains(c);
    if name.is_empty() || name.len() > WORD_CHARS_MAX || !name.chars().all(good) {
        return Err(Invalid::new(
            field,
            format!(
                "{name:?} is no name of a token; write 1 to {WORD_CHARS_MAX} of a-z, A-Z, 0-9, '.', '_', '-' and '@', such as ann or ci-deploy"
            ),
        ));
    }
    Ok(())
}

/// The name of the token of a host that joined; the `number`-th of this host.
pub fn joined_name(host: &str, number: usize) -> String {
    let end = if number == 1 {
        String::new()
    } else {
        format!("@{number}")
    };
    let room = WORD_CHARS_MAX - "runner@".len() - end.len();
    let host: String = host.chars().take(room).collect();
    format!("runner@{host}{end}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_role_may_what_the_table_says() {
        use Needs::{Administer, Nothing, Operate, Run, View};
        for (role, allowed) in [
            (Role::Admin, &[Nothing, View, Operate, Administer, Run][..]),
            (Role::Operator, &[Nothing, View, Operate]),
            (Role::Viewer, &[Nothing, View]),
            (Role::Runner, &[Nothing, Run]),
        ] {
            for needs in Needs::ALL {
                assert_eq!(role.may(needs), allowed.contains(&needs), "{role} {needs:?}");
            }
            assert_eq!(Role::parse(role.name()), Some(role));
        }
        assert_eq!(Role::parse("superuser"), None);
        assert_eq!(Needs::Operate.roles(), "operator or admin");
    }

    #[test]
    fn the_name_of_a_joined_host_is_one_of_a_token() {
        assert_eq!(joined_name("db-01", 1), "runner@db-01");
        assert_eq!(joined_name("db-01", 2), "runner@db-01@2");
        for number in [1, 2, 1_000] {
            assert_eq!(check_token_name(&joined_name(&"h".repeat(63), number), "name"), Ok(()));
        }
    }

    #[test]
    fn a_name_of_a_token_is_one_word() {
        for good in ["ann", "ann@example.org", "CI_deploy-2.0", &"x".repeat(63)] {
            assert_eq!(check_token_name(good, "name"), Ok(()));
        }
        for bad in ["", "a b", "a/b", "a\n", "ä", &"x".repeat(64)] {
            assert_eq!(check_token_name(bad, "name").expect_err("refused").field, "name");
        }
    }
}
