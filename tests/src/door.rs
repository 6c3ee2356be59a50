//! A TCP proxy that can stop passing bytes on, without closing anything: a network that swallows.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

pub struct Door {
    pub port: u16,
    closed: Arc<AtomicBool>,
}

impl Door {
    pub fn open(target: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
        let port = listener.local_addr().expect("address").port();
        let closed = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&closed);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let Ok(other) = TcpStream::connect(("127.0.0.1", target)) else {
                    continue;
                };
                for (from, to) in [
                    (stream.try_clone(), other.try_clone()),
                    (other.try_clone(), stream.try_clone()),
                ] {
                    let (Ok(mut from), Ok(mut to), flag) = (from, to, Arc::clone(&flag)) else {
                        continue;
                    };
                    std::thread::spawn(move || {
                        let mut buffer = [0; 16_384];
                        while let Ok(n) = from.read(&mut buffer) {
                            while flag.load(Ordering::SeqCst) {
                                std::thread::sleep(Duration::from_millis(50));
                            }
                            if n == 0 || to.write_all(&buffer[..n]).is_err() {
                                return;
                            }
                        }
                    });
                }
            }
        });
        Self { port, closed }
    }

    pub fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
    }
}
