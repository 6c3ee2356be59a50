//! Low numbers for the files of a child. A busy warden has hundreds of descriptors open. A child that gets a copy of them all closes
//! them one by one at its exec, which took a sixth of the warden's time. So it begins with the table of this process itself, and makes itself
//! a table of those below a number (`close_range` with `CLOSE_RANGE_UNSHARE`, Linux 5.9): its three files must lie there.

use super::Files;
use nix::fcntl::OFlag;
use nix::sys::resource::{Resource, getrlimit};
use nix::unistd::dup3;
use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::sync::OnceLock;

/// A process that may have fewer descriptors has few to copy, and none to spare.
const WORTH_IT: u64 = 256;
/// Bits of a word.
const WORD: libc::c_int = 64;

thread_local! {
    /// Of each thread that starts many children, for as long as it lives: the table is everybody's.
    static PLACES: RefCell<Option<Places>> = const { RefCell::new(None) };
}

struct Places {
    null: File,
    places: [OwnedFd; 3],
}

impl Places {
    fn reserve() -> io::Result<Self> {
        let null = File::open("/dev/null")?;
        // The lowest that are free, and none of the standard files.
        let place = || null.try_clone().map(OwnedFd::from);
        let places = [place()?, place()?, place()?];
        Ok(Self { null, places })
    }

    fn numbers(&self) -> [libc::c_int; 3] {
        self.places.each_ref().map(OwnedFd::as_raw_fd)
    }

    fn fill(&mut self, files: [BorrowedFd<'_>; 3]) -> nix::Result<()> {
        let mut places = self.places.iter_mut().zip(files);
        places.try_for_each(|(place, file)| dup3(file, place, OFlag::O_CLOEXEC))
    }

    fn empty(&mut self) -> nix::Result<()> {
        let mut places = self.places.iter_mut();
        places.try_for_each(|place| dup3(&self.null, place, OFlag::O_CLOEXEC))
    }
}

/// To be called by a thread that will start many children, before it has many descriptors.
pub fn reserve_low_numbers() {
    let has_many = getrlimit(Resource::RLIMIT_NOFILE).is_ok_and(|(soft, _)| soft >= WORTH_IT);
    if has_many && can_unshare() {
        // Without them its children do it the other way.
        PLACES.set(Places::reserve().ok());
    }
}

/// The files of the next child at low numbers, until this is dropped.
pub struct Low {
    numbers: [libc::c_int; 3],
}

impl Low {
    /// `None`: this thread has reserved none. The child does without.
    pub fn of_this_thread(files: Files<'_>) -> Option<Self> {
        // From here on they are emptied again whatever happens.
        let low = Self {
            numbers: PLACES.with_borrow(|places| places.as_ref().map(Places::numbers))?,
        };
        let filled = PLACES.with_borrow_mut(|places| {
            let files = [files.stdin, files.stdout, files.stderr];
            places.as_mut().is_some_and(|places| places.fill(files).is_ok())
        });
        filled.then_some(low)
    }

    pub fn numbers(&self) -> [libc::c_int; 3] {
        self.numbers
    }

    /// Behind the last one.
    pub fn end(&self) -> u32 {
        self.numbers
            .iter()
            .fold(0, |end, number| end.max(number.cast_unsigned() + 1))
    }
}

impl Drop for Low {
    fn drop(&mut self) {
        PLACES.with_borrow_mut(|places| {
            // A file that is deleted meanwhile must not be held open. With the places it is given back in any case.
            if places.as_mut().is_some_and(|places| places.empty().is_err()) {
                *places = None;
            }
        });
    }
}

/// Tried once, on a thread that ends with the table that it makes itself. Kernels without the mending of CVE-2024-45025 (Linux 6.11, and
/// older ones that distributions have mended) remember of numbers above a small table that they are taken, and what the child
/// opens gets numbers beyond its limit.
fn can_unshare() -> bool {
    static CAN: OnceLock<bool> = OnceLock::new();
    *CAN.get_or_init(|| {
        let Ok(null) = File::open("/dev/null") else {
            return false;
        };
        let Ok(_taken) = take_word(&null) else { return false };
        let tried = std::thread::Builder::new().name("try".into()).spawn(unshares_well);
        tried.is_ok_and(|tried| tried.join().unwrap_or(false))
    })
}

/// Takes what is free of the numbers that have the second word of the kernel's map.
fn take_word(null: &File) -> io::Result<Vec<OwnedFd>> {
    let mut taken = Vec::new();
    loop {
        let number = duplicate_above(null)?;
        if number.as_raw_fd() >= 2 * WORD {
            return Ok(taken);
        }
        taken.push(number);
    }
}

fn unshares_well() -> bool {
    // SAFETY: system calls on numbers. After the first this thread has a table of its own, and uses nothing of it but its standard input.
    unsafe {
        libc::syscall(libc::SYS_close_range, WORD, libc::c_int::MAX, libc::CLOSE_RANGE_UNSHARE) == 0
            && libc::fcntl(0, libc::F_DUPFD_CLOEXEC, WORD) == WORD
    }
}

/// At the first free number from the second word on.
fn duplicate_above(file: &File) -> io::Result<OwnedFd> {
    // SAFETY: a system call on a descriptor that is open; what it returns is nobody else's.
    unsafe {
        match libc::fcntl(file.as_raw_fd(), libc::F_DUPFD_CLOEXEC, WORD) {
            number @ 0.. => Ok(OwnedFd::from_raw_fd(number)),
            _ => Err(io::Error::last_os_error()),
        }
    }
}
