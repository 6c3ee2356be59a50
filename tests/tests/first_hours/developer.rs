//! A laptop, a small product: a job file that is right before it is stored, the history that tells, and tasks from the product itself.

use crate::nothing_is_left;
use serde_json::{Value, json};
use std::io::{Read as _, Write as _};
use std::time::Duration;
use systole_tests::home::Home;
use systole_tests::person::Person;
use systole_tests::system::until;

/// A product of this machine, which speaks HTTP.
struct Product {
    port: u16,
    token: String,
}

impl Product {
    /// As `curl -d BODY -H HEADER http://…`: the status and the body.
    fn ask(&self, line: &str, headers: &str, body: &str) -> (u16, String) {
        let mut stream = std::net::TcpStream::connect(("127.0.0.1", self.port)).expect("connects");
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("set");
        let token = &self.token;
        write!(
            stream,
            "{line} HTTP/1.0\r\nhost: x\r\nauthorization: Bearer {token}\r\ncontent-type: application/json\r\n{headers}content-length: {}\r\n\r\n{body}",
            body.len()
        )
        .expect("sent");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("answered");
        let status = text.split(' ').nth(1).and_then(|status| status.parse().ok());
        let body = text.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        (status.expect("a status"), body.to_owned())
    }

    fn task(&self, id: &str) -> Value {
        let (status, body) = self.ask(&format!("GET /v1/tasks/{id}"), "", "");
        assert_eq!(status, 200, "{body}");
        serde_json::from_str::<Value>(&body).expect("JSON")["task"].take()
    }

    fn until_state(&self, id: &str, state: &str) -> Value {
        let mut task = self.task(id);
        until(&format!("task {id} is {state}"), || {
            task = self.task(id);
            task["state"] == state
        });
        task
    }
}

#[test]
fn the_first_hour_of_a_backend_developer() {
    let home = Home::new();
    let mut his = Person::at(&home);
    let up = format!("systole up --detach --slots 2 --listen {}", home.listen());
    his.types(&up)
        .is(0, &["scheduler and 2 runner slots", "In the background"]);
    his.types("systole run -- echo hi").is(0, &["hi\n"]);
    // Keys that the shell completes.
    his.types("source <(systole completions bash)").is(0, &[]);
    his.presses("systole job tri\t");
    his.until("the word is there", |text| text.contains("systole job trigger"));
    his.presses("\x15");

    // A job file: begun by the program, wrong, right.
    his.types("systole job init invoices -f jobs/invoices.toml")
        .is(0, &["jobs/invoices.toml", "systole job check"]);
    his.types("systole job check jobs/").is(0, &["invoices", "02:30"]);
    home.write(
        "jobs/invoices.toml",
        "[[job]]\nname = \"invoices\"\nshell = 'echo for $SYSTOLE_DATA_MONTH; exit ${SYSTOLE_DATA_CODE:-0}'\ntimeout = 12\nretires = 3\n\n[[job.trigger]]\ncron = \"0 7 * * 1-8\"\nzone = \"Europe/Berlin\"\n",
    );
    his.types("systole job check jobs/").is(
        2,
        &[
            "invoices.toml:4:11",
            "\"12s\"",
            "invoices.toml:5:1",
            "Did you mean \"retry\"",
        ],
    );
    his.types("systole job apply -f jobs/").is(2, &["invoices.toml:4:11"]);
    his.types("sed -i 's/^timeout.*/timeout = \"1m\"/; /^retires/d' jobs/invoices.toml; systole job check jobs/")
        .is(2, &["invoices.toml:7:8", "cron", "outside 0"]);
    his.types("sed -i 's/1-8/*/' jobs/invoices.toml");
    his.types("systole job check jobs/").is(0, &["07:00 +0"]);
    his.types("systole job apply -f jobs/")
        .is(0, &["+ invoices", "next fires", "07:00"]);

    // Now, with data; what it says and how it ends are his.
    his.types("systole job trigger invoices -d MONTH=11")
        .is(0, &["for 11\n"]);
    his.types("systole job run invoices -d MONTH=12 -d CODE=6")
        .is(6, &["for 12\n", "FAILED exit code 6"]);
    his.types("systole job history invoices")
        .is(0, &["fired", "FINISHED", "exit code 6"]);
    his.types("systole why invoices").is(0, &["invoices", "07:00"]);
    his.types("sed -i 's/0 7/30 8/' jobs/invoices.toml; systole job apply -f jobs/ --dry-run")
        .is(10, &["~ invoices", "\"0 7 * * *\" → \"30 8 * * *\""]);
    his.types("systole job pause invoices --until 1h --reason holidays; systole job ls")
        .is(0, &["paused"]);

    // From the product: a key makes one task of two calls; the answers name what is wrong.
    let token =
        std::fs::read_to_string(home.path(&format!(".config/systole/tokens/127.0.0.1_{}/admin.token", home.port)));
    let product = Product {
        port: home.port,
        token: token.expect("where `up` says").trim().to_owned(),
    };
    let body =
        json!({"spec": {"command": ["sh", "-c", "echo order 17 is paid; exit 0"], "tags": ["order-17"]}}).to_string();
    let key = "Idempotency-Key: order-17\r\n";
    let (status, first) = product.ask("POST /v1/tasks", key, &body);
    assert_eq!(status, 201, "{first}");
    let id = serde_json::from_str::<Value>(&first).expect("JSON")["task"]["id"]
        .as_str()
        .expect("an id")
        .to_owned();
    let (status, second) = product.ask("POST /v1/tasks", key, &body);
    assert_eq!(status, 200, "known: {second}");
    assert!(second.contains(&format!("\"{id}\"")), "{second}");
    let (status, other) = product.ask("POST /v1/tasks", key, &body.replace("17", "18"));
    assert!(status == 409 && other.contains("CONFLICT_005"), "{status} {other}");
    let (status, wrong) = product.ask(
        "POST /v1/tasks",
        "",
        r#"{"spec": {"command": ["true"], "timeout": 12}}"#,
    );
    assert!(status == 400 && wrong.contains("timeout"), "{status} {wrong}");
    product.until_state(&id, "FINISHED");
    assert_eq!(
        product.ask(&format!("GET /v1/tasks/{id}/output"), "", ""),
        (200, "order 17 is paid\n".to_owned())
    );
    let stranger = Product {
        port: home.port,
        token: "of nobody".into(),
    };
    let (status, refused) = stranger.ask(&format!("GET /v1/tasks/{id}"), "", "");
    assert!(status == 401 && refused.contains("AUTH_001"), "{status} {refused}");
    let (_, long) = product.ask(
        "POST /v1/tasks",
        "",
        &json!({"spec": {"command": ["sleep", "1000"]}}).to_string(),
    );
    let long = serde_json::from_str::<Value>(&long).expect("JSON")["task"]["id"]
        .as_str()
        .expect("an id")
        .to_owned();
    product.until_state(&long, "RUNNING");
    let (status, deleted) = product.ask(&format!("DELETE /v1/tasks/{long}"), "", "");
    assert!(status < 300, "{status} {deleted}");
    product.until_state(&long, "TERMINATED");
    his.types("systole ls --tag order-17").is(0, &["FINISHED"]);

    // Not twice while one waits.
    let one = his.types("systole submit --unique report --delay 1h -- true");
    let id = one.is(0, &[]).after("task ");
    let two = his.types("systole submit --unique report --delay 1h -- true");
    assert_eq!(two.is(0, &[]).after("task "), id, "{two:?}");

    // It stays: the terminal goes, what is stored outlives the end, and how it becomes a service is shown.
    his.types("systole backup copy.db").is(0, &["SHA-256"]);
    his.types("systole service install --dry-run -- --slots 2")
        .is(0, &["[Service]", " up --slots 2"]);
    drop(his);
    let mut later = Person::at(&home);
    later.types(&up).is(0, &["is running at"]);
    later.types("systole down").is(0, &["stopped"]);
    later.types("systole ls").is(5, &["no scheduler at", "systole up"]);
    later.types(&up).is(0, &["In the background"]);
    later.types("systole job history invoices").is(0, &["exit code 6"]);
    later.types("systole status").is(0, &["1 ready", "exit code"]);
    later.types("systole down").is(0, &["stopped"]);
    drop(later);
    nothing_is_left(&home);
}
