//! The first hour of three users, as README.md and docs/guide.md lead them through it: typed into a shell on a real terminal, against
//! the program of this workspace or that of a package (`SYSTOLE_BIN`).

mod data_engineer;
mod developer;
mod sre;

use systole_tests::home::Home;
use systole_tests::system::until;

/// Whatever they have started is gone when they have ended it.
fn nothing_is_left(home: &Home) {
    until("nothing of them runs any more", || home.processes().is_empty());
}
