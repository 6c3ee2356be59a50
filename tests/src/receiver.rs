//! A server of plain HTTP that keeps what it is sent.

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// One request.
#[derive(Clone, Debug)]
pub struct Got {
    pub method: String,
    pub path: String,
    /// Names in lower case.
    pub headers: HashMap<String, String>,
    pub body: String,
}

impl Got {
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }
}

#[derive(Default)]
struct Shared {
    got: Mutex<Vec<Got>>,
    status: AtomicU16,
    closed: AtomicBool,
}

pub struct Receiver {
    pub url: String,
    shared: Arc<Shared>,
}

impl Receiver {
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("address"));
        let shared = Arc::new(Shared::default());
        shared.status.store(200, Ordering::SeqCst);
        let inside = Arc::clone(&shared);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if inside.closed.load(Ordering::SeqCst) {
                    return;
                }
                let inside = Arc::clone(&inside);
                std::thread::spawn(move || drop(serve(stream, &inside)));
            }
        });
        Self { url, shared }
    }

    /// What it answers from now on.
    pub fn answer(&self, status: u16) {
        self.shared.status.store(status, Ordering::SeqCst);
    }

    pub fn got(&self) -> Vec<Got> {
        self.shared.got.lock().expect("list").clone()
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.shared.closed.store(true, Ordering::SeqCst);
        let addr = self.url.trim_start_matches("http://");
        drop(TcpStream::connect(addr));
    }
}

fn serve(stream: std::io::Result<TcpStream>, shared: &Shared) -> std::io::Result<()> {
    let mut stream = stream?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let mut words = line.split_whitespace().map(str::to_owned);
    let (Some(method), Some(path)) = (words.next(), words.next()) else {
        return Ok(());
    };
    let mut headers = HashMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        match line.trim_end().split_once(':') {
            Some((name, value)) => {
                headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
            }
            None => break,
        }
    }
    let length = headers
        .get("content-length")
        .and_then(|text| text.parse().ok())
        .unwrap_or(0);
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    shared.got.lock().expect("list").push(Got {
        method,
        path,
        headers,
        body: String::from_utf8_lossy(&body).into_owned(),
    });
    let status = shared.status.load(Ordering::SeqCst);
    write!(
        stream,
        "HTTP/1.1 {status} X\r\ncontent-length: 4\r\nconnection: close\r\n\r\nwell"
    )
}
