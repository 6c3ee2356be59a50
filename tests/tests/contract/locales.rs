//! In which language refusals are said.

use systole_proto::convert::{ERROR_CODE_KEY, ERROR_FIELD_KEY};
use systole_proto::v1;
use systole_tests::replica::{Replica, Token};
use systole_tests::{TestDb, on_both_databases};
use tonic::Request;

on_both_databases!(
    a_refusal_is_said_in_the_language_of_its_call,
    nobody_but_who_asks_for_it_is_answered_in_another_language,
);

fn in_language<M>(language: &'static str, message: M) -> Request<M> {
    let mut request = Request::new(message);
    let header = language.parse().expect("a header");
    request.metadata_mut().insert("accept-language", header);
    request
}

fn runs(limit: u32) -> v1::RunsRequest {
    v1::RunsRequest {
        job: "nightly".into(),
        limit,
        ..v1::RunsRequest::default()
    }
}

fn nothing() -> v1::SubmitRequest {
    v1::SubmitRequest {
        items: vec![v1::SubmitItem {
            spec: Some(v1::TaskSpec::default()),
            key: String::new(),
        }],
        reason: String::new(),
    }
}

async fn a_refusal_is_said_in_the_language_of_its_call(db: TestDb) {
    let replica = Replica::start(&db).await;
    // Of a whole call. What programs go by is the same in all languages, and so is what the case itself is.
    let english = replica.jobs().runs(runs(1_001)).await.expect_err("out of range");
    let german = replica
        .jobs()
        .runs(in_language("de-AT, en;q=0.5", runs(1_001)))
        .await
        .expect_err("out of range");
    assert_eq!(
        german.message(),
        format!(
            "Eine Seitengröße oder ein Seitentoken liegt außerhalb des erlaubten Bereichs: {}",
            english.message()
        )
    );
    assert_eq!(german.code(), english.code());
    for key in [ERROR_CODE_KEY, ERROR_FIELD_KEY] {
        assert_eq!(german.metadata().get(key), english.metadata().get(key), "{key}");
    }
    // Of one item.
    let item = async |language: &'static str| {
        let answer = replica.tasks().submit(in_language(language, nothing())).await;
        let error = answer.expect("answered").into_inner().results.remove(0).error;
        error.expect("refused")
    };
    let (japanese, english) = (item("ja").await, item("en-GB").await);
    assert_eq!((&japanese.code, &japanese.field), (&english.code, &english.field));
    assert_eq!(
        japanese.message,
        format!("リクエストのフィールドに誤りがあります：{}", english.message)
    );
    // Of who may not call at all.
    let nobody = replica
        .tasks_with(Token(None))
        .submit(in_language("zh-Hant-TW", nothing()))
        .await
        .expect_err("no token");
    assert!(nobody.message().starts_with("呼叫沒有權杖"), "{}", nobody.message());
    replica.stop().await;
}

async fn nobody_but_who_asks_for_it_is_answered_in_another_language(db: TestDb) {
    let replica = Replica::start(&db).await;
    let plain = replica.jobs().runs(runs(1_001)).await.expect_err("out of range");
    for language in ["tlh, *;q=0.5", "en-GB, de;q=0.9", "de;q=0", ";;,q"] {
        let refused = replica.jobs().runs(in_language(language, runs(1_001))).await;
        assert_eq!(
            refused.expect_err("out of range").message(),
            plain.message(),
            "{language}"
        );
    }
    // The language is that of one call: two at once on one connection do not meet.
    let (mut jobs, mut others) = (replica.jobs(), replica.jobs());
    let (german, english) = tokio::join!(jobs.runs(in_language("de", runs(1_001))), others.runs(runs(1_001)),);
    assert_ne!(german.expect_err("out of range").message(), plain.message());
    assert_eq!(english.expect_err("out of range").message(), plain.message());
    replica.stop().await;
}
