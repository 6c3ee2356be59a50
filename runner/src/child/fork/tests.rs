use super::*;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;

fn fork(arguments: &[&str], output: &std::fs::File) -> Result<Forked, Refused> {
    let null = std::fs::File::open("/dev/null").unwrap();
    let files = Files {
        stdin: null.as_fd(),
        stdout: output.as_fd(),
        stderr: output.as_fd(),
    };
    let environment = [(OsStr::new("A"), OsStr::new("b c"))];
    let program = OsStr::new(arguments[0]);
    Image::new(
        program,
        arguments.iter().copied(),
        environment.into_iter(),
        OsStr::new("/"),
    )?
    .fork(files, None)
}

fn text_of(mut output: &std::fs::File) -> String {
    let mut text = String::new();
    io::Seek::rewind(&mut output).unwrap();
    output.read_to_string(&mut text).unwrap();
    text
}

fn wait(child: &Forked) -> End {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
    loop {
        if let Some((end, _)) = reap(child.pid).unwrap() {
            return end;
        }
        assert!(std::time::Instant::now() < deadline, "the child does not end");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

// On the test's own thread: the child asks to be killed with it, and the test waits for the child.
#[test]
fn a_child_runs_and_its_end_is_seen() {
    let output = tempfile::tempfile().unwrap();
    let child = fork(&["/bin/sh", "-c", "echo $A; pwd; exit 3"], &output).unwrap();
    assert_eq!(wait(&child), End::Code(3));
    let text = text_of(&output);
    assert_eq!(text, "b c\n/\n");
}

/// More than a small table has room for, so that numbers above it are looked at, too.
#[test]
fn descriptors_of_this_process_are_neither_passed_on_nor_closed() {
    reserve_low_numbers();
    let open: Vec<_> = (0..300).map(|_| tempfile::tempfile().unwrap()).collect();
    let inodes = || -> Vec<u64> { open.iter().map(|file| file.metadata().unwrap().ino()).collect() };
    let before = inodes();
    let output = tempfile::tempfile().unwrap();
    for _ in 0..3 {
        let child = fork(&["/bin/sh", "-c", "echo /proc/self/fd/*"], &output).unwrap();
        assert_eq!(wait(&child), End::Code(0));
    }
    let text = text_of(&output);
    // The shell itself opens the folder, and some keep a copy of a standard one.
    assert_eq!(text.lines().count(), 3);
    for line in text.lines() {
        assert!(line.split(' ').count() <= 5, "{line}");
    }
    assert_eq!(inodes(), before);
}

/// CVE-2024-45025.
#[test]
fn numbers_above_those_that_it_was_born_with_are_free_to_a_child() {
    reserve_low_numbers();
    let open: Vec<_> = (0..300).map(|_| tempfile::tempfile().unwrap()).collect();
    let output = tempfile::tempfile().unwrap();
    // The lowest free number from 10 on, each time.
    let script = "for i in {1..140}; do exec {n}</dev/null; done; echo $n";
    let child = fork(&["/bin/bash", "-c", script], &output).unwrap();
    assert_eq!(wait(&child), End::Code(0));
    drop(open);
    let text = text_of(&output);
    assert_eq!(text, "149\n");
}

/// Of a file that is deleted when its task is over, the room is free at once.
#[test]
fn files_of_a_child_are_not_held_open_for_it() {
    reserve_low_numbers();
    let output = tempfile::tempfile().unwrap();
    // A number of a deleted file is given out again; its length here is nobody else's.
    output.set_len(98_765).unwrap();
    let which = |meta: std::fs::Metadata| (meta.dev(), meta.ino(), meta.len());
    let file = which(output.metadata().unwrap());
    assert_eq!(wait(&fork(&["/bin/true"], &output).unwrap()), End::Code(0));
    assert!(fork(&["/nowhere"], &output).is_err());
    drop(output);
    let held = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    // Those of another test may be closed meanwhile.
    let mut held = held.filter_map(|entry| std::fs::metadata(entry.path()).ok());
    assert!(!held.any(|held| which(held) == file));
}

/// Higher, which everybody may set; this process keeps its own.
#[test]
fn a_child_has_an_oom_score_of_its_own() {
    let own = || std::fs::read_to_string("/proc/self/oom_score_adj").unwrap();
    let before = own();
    remember_oom_score(321);
    let output = tempfile::tempfile().unwrap();
    let child = fork(&["/bin/cat", "/proc/self/oom_score_adj"], &output).unwrap();
    assert_eq!(wait(&child), End::Code(0));
    let text = text_of(&output);
    assert_eq!((text.as_str(), own()), ("321\n", before));
}

#[test]
fn the_end_by_any_signal_is_told_as_itself() {
    let output = tempfile::tempfile().unwrap();
    for signal in [1, 9, 15, 40, 64] {
        let script = format!("kill -{signal} $$");
        let child = fork(&["/bin/sh", "-c", &script], &output).unwrap();
        assert_eq!(wait(&child), End::Signal(signal));
    }
}

#[test]
fn a_child_dies_with_the_thread_that_forked_it() {
    let forked = std::thread::spawn(|| fork(&["/bin/sleep", "300"], &tempfile::tempfile().unwrap()).unwrap());
    assert_eq!(wait(&forked.join().unwrap()), End::Signal(9));
}

/// The kernel forgets the signal of the parent's death when the user changes.
#[test]
fn a_child_of_another_user_dies_with_the_thread_too() {
    if own_user() != 0 {
        println!("only root can start a child of another user");
        return;
    }
    let other = || {
        let child = fork_as(3_999_999_999, &["/bin/sleep", "300"]).unwrap();
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.pid)).unwrap();
        let line = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim();
        assert_eq!(line("Uid:"), "3999999999\t3999999999\t3999999999\t3999999999");
        assert_eq!(line("Gid:"), "3999999998\t3999999998\t3999999998\t3999999998");
        assert_eq!(line("Groups:"), "3999999997 3999999998");
        assert_eq!(own_user(), 0, "and nothing of it is left in this process");
        child
    };
    let child = std::thread::spawn(other).join().unwrap();
    assert_eq!(wait(&child), End::Signal(9));
}

fn fork_as(uid: u32, arguments: &[&str]) -> Result<Forked, Refused> {
    let identity = Identity {
        uid,
        gid: 3_999_999_998,
        groups: vec![3_999_999_998, 3_999_999_997],
    };
    let bounds = Bounds {
        identity: Some(identity),
        ..Bounds::default()
    };
    let null = std::fs::File::options()
        .read(true)
        .write(true)
        .open("/dev/null")
        .unwrap();
    let files = Files {
        stdin: null.as_fd(),
        stdout: null.as_fd(),
        stderr: null.as_fd(),
    };
    let program = OsStr::new(arguments[0]);
    Image::new(program, arguments.iter().copied(), [].into_iter(), OsStr::new("/"))?
        .bounded(bounds)
        .fork(files, None)
}

/// As when another process of its user stops it: then nobody closes the other end.
#[test]
fn a_child_that_does_not_come_to_its_exec_is_not_waited_for_forever() {
    let (from, to) = pipe2(OFlag::O_CLOEXEC).unwrap();
    let since = Instant::now();
    assert_eq!(await_exec(&from), Some((Step::Exec as u8, libc::ETIMEDOUT)));
    assert!(since.elapsed() >= Duration::from_millis(EXEC_MS_MAX.into()));
    let [a, b, c, d] = libc::EPERM.to_ne_bytes();
    nix::unistd::write(&to, &[Step::Identity as u8, a, b, c, d]).unwrap();
    assert_eq!(await_exec(&from), Some((Step::Identity as u8, libc::EPERM)));
    drop(to);
    // Children that other tests fork meanwhile hold the other end until their exec.
    assert_eq!(await_exec(&from), None);
}

#[test]
fn a_child_of_another_user_whose_start_fails_says_where() {
    if own_user() != 0 {
        println!("only root can start a child of another user");
        return;
    }
    let refused = fork_as(3_999_999_995, &["/no/such"]).unwrap_err();
    assert_eq!(
        (refused.step, refused.error.raw_os_error()),
        (Step::Exec, Some(libc::ENOENT))
    );
    let refused = fork_as(u32::MAX, &["/bin/true"]).unwrap_err();
    assert_eq!(
        (refused.step, refused.error.raw_os_error()),
        (Step::Identity, Some(libc::EPERM))
    );
}

fn own_user() -> u32 {
    nix::unistd::geteuid().as_raw()
}

#[test]
fn the_error_of_a_failed_exec_is_the_kernels() {
    let output = tempfile::tempfile().unwrap();
    let refused = |arguments| {
        let refused = fork(arguments, &output).unwrap_err();
        (refused.step, refused.error.raw_os_error())
    };
    assert_eq!(refused(&["/no/such"]), (Step::Exec, Some(libc::ENOENT)));
    assert_eq!(refused(&["/etc"]), (Step::Exec, Some(libc::EACCES)));
}

#[test]
fn a_script_without_an_interpreter_is_run_by_the_shell() {
    let dir = tempfile::tempdir().unwrap();
    let script = dir.path().join("script");
    // Written by another process: a test that forks meanwhile would hold it open for a moment, and a
    // file that is open for writing cannot be executed.
    let write = "echo 'exit $1' > \"$0\"; chmod +x \"$0\"";
    assert!(
        std::process::Command::new("sh")
            .args(["-c", write])
            .arg(&script)
            .status()
            .unwrap()
            .success()
    );
    let output = tempfile::tempfile().unwrap();
    let child = fork(&[script.to_str().unwrap(), "7"], &output).unwrap();
    assert_eq!(wait(&child), End::Code(7));
}
