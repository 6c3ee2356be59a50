//! What is of this machine: services, `up`, backups, completions.

use crate::documents::Shell;
use std::os::unix::fs::PermissionsExt as _;
use systole_tests::home::Home;
use systole_tests::system::Said;

/// A manager that does what it is told.
const SYSTEMCTL: &str = r#"#!/bin/sh
case "$*" in
  *--property=Version*) echo 252 ;;
  *--property=ActiveState*) echo active ;;
  *--property=UnitFileState*) echo enabled ;;
  *--property=MainPID*) echo 4711 ;;
esac
"#;

pub fn here(shell: &mut Shell<'_>) {
    let system = shell.system;
    shell.silent("completions", &["completions", "bash"]);
    if system.db.postgres.is_none() {
        shell.both("backup", &["backup", "copy.db", "--force"]);
        let said: Said = system
            .command(&["-o", "json", "backup", "-"])
            .output()
            .expect("systole starts")
            .into();
        assert!(said.stdout.starts_with("SQLite format 3"), "{}", said.stderr);
        shell.documents.silent("backup -", &said);
    } else {
        let said = system.say(&["-o", "json", "backup", "copy.db"]);
        assert!(said.stdout.is_empty() && said.stderr.contains("pg_dump "), "{said:?}");
    }
    let home = Home::new();
    for (name, text) in [("systemctl", SYSTEMCTL), ("loginctl", "#!/bin/sh\necho no\n")] {
        home.write(&format!("bin/{name}"), text);
        let path = home.path("bin").join(name);
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).expect("set");
    }
    let path = format!("{}:/usr/bin:/bin", home.path("bin").display());
    let dry = ["service", "install", "--dry-run", "--", "--slots", "3"];
    shell.at_home(&home, "service install --dry-run", &dry, Some(&path));
    let install = ["service", "install", "--", "--slots", "3"];
    shell.at_home(&home, "service install", &install, Some(&path));
    shell.at_home(&home, "service status", &["service", "status"], Some(&path));
    let said: Said = home
        .command(&["-o", "json", "service", "uninstall"])
        .env("PATH", &path)
        .output()
        .expect("systole starts")
        .into();
    assert_eq!(said.code, Some(0), "{said:?}");
    shell.documents.silent("service uninstall", &said);
    let listen = home.listen();
    let up = ["up", "--detach", "--listen", &listen, "--slots", "1"];
    shell.at_home(&home, "up --detach", &up, None);
    let said = home.say(&["-o", "json", "down"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    shell.documents.silent("down", &said);
}
