//! Where the control groups of this process are, as the kernel's files tell it.

use std::path::{Path, PathBuf};

/// The directory of the group that this process is in.
pub fn own_path(cgroup: &str, mountinfo: &str) -> Option<PathBuf> {
    let inside = cgroup.lines().find_map(|line| line.strip_prefix("0::"))?;
    below_mount(inside, mountinfo, |kind, _| kind == "cgroup2")
}

/// The directory of the group of version 1 that this process is in, for one controller.
pub fn own_path_v1(cgroup: &str, mountinfo: &str, controller: &str) -> Option<PathBuf> {
    let has = |list: &str| list.split(',').any(|one| one == controller);
    let inside = cgroup.lines().find_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        has(controllers).then_some(path)
    })?;
    below_mount(inside, mountinfo, |kind, options| kind == "cgroup" && has(options))
}

/// `is_it`: of the kind of a file system and its own options.
fn below_mount(inside: &str, mountinfo: &str, is_it: impl Fn(&str, &str) -> bool) -> Option<PathBuf> {
    mountinfo.lines().find_map(|line| {
        let (front, back) = line.split_once(" - ")?;
        let mut fields = back.split(' ');
        if !is_it(fields.next()?, fields.nth(1).unwrap_or_default()) {
            return None;
        }
        let mut fields = front.split(' ').skip(3);
        let (root, mounted) = (fields.next()?, fields.next()?);
        let below = match root {
            "/" => inside,
            root => inside.strip_prefix(root)?,
        };
        Some(Path::new(&unescape(mounted)).join(below.trim_start_matches('/')))
    })
}

/// The kernel writes blanks in this file as octal numbers.
fn unescape(text: &str) -> String {
    text.replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n\
        32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
        41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";

    #[test]
    fn the_own_group_is_found_in_each_layout() {
        let cgroup = "8:pids:/x\n0::/system.slice/a.service\n";
        assert_eq!(
            own_path(cgroup, MOUNTS).unwrap(),
            Path::new("/sys/fs/cgroup/unified/system.slice/a.service")
        );
        let container = "41 31 0:38 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup2 rw\n";
        assert_eq!(
            own_path("0::/docker/abc/x\n", container).unwrap(),
            Path::new("/sys/fs/cgroup/x")
        );
        assert_eq!(own_path("0::/\n", "1 2 3:4 / /a rw - ext4 /dev/x rw\n"), None);
        assert_eq!(own_path("8:pids:/x\n", MOUNTS), None);
        let both = "4:cpu,cpuacct:/a\n8:pids:/x\n0::/\n";
        assert_eq!(
            own_path_v1(both, MOUNTS, "cpu").unwrap(),
            Path::new("/sys/fs/cgroup/cpu/a")
        );
        assert_eq!(own_path_v1(both, MOUNTS, "pids"), None, "it is not mounted");
        assert_eq!(own_path_v1(both, MOUNTS, "memory"), None);
    }
}
