//! Servers and settings that could not work, each refused with a sentence when the bus is connected.

use bus_nats::{ConnectError, Login, NatsBus, Settings};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::server::{Server, programs};
use crate::steps::{all, assert_no_hole, connect_with, insist, numbered, settings, soon};

/// A port at which nothing listens, on any machine.
const NOWHERE: &str = "nats://127.0.0.1:1";

#[tokio::test]
async fn of_several_servers_a_dead_one_is_passed_over() {
    for program in programs() {
        let mut server = Server::start(&program).await;
        let bus = connect_with(Settings {
            servers: vec![NOWHERE.to_owned(), server.address()],
            ..Settings::default()
        })
        .await;
        insist(&bus, numbered(0..2)).await;
        server.restart().await;
        insist(&bus, numbered(2..4)).await;
        assert_no_hole(&all(&bus).await, 0..4);
    }
}

#[tokio::test]
async fn servers_that_cannot_be_reached_are_named() {
    let error = fails(Settings {
        servers: vec![NOWHERE.to_owned()],
        ..Settings::default()
    })
    .await;
    assert!(error.is_retryable());
    assert_eq!(error.to_string(), format!("connect to NATS at {NOWHERE}"));
}

#[tokio::test]
async fn a_server_that_takes_only_small_messages_is_refused() {
    for program in programs() {
        let configuration = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(configuration.path(), "max_payload: 256KB\n").unwrap();
        let path = configuration.path().to_str().unwrap();
        let server = Server::start_with(&program, &["-js", "-c", path]).await;
        let error = fails(settings(&server)).await;
        assert!(matches!(error, ConnectError::Payload { .. }), "{error:?}");
        assert!(error.to_string().contains("max_payload"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_that_begin_in_the_same_moment_make_each_stream_once() {
    for program in programs() {
        let server = Server::start(&program).await;
        for round in 0..20 {
            let mut beginning = JoinSet::new();
            for _ in 0..8 {
                let settings = Settings {
                    prefix: format!("round{round}"),
                    topic_bytes: 1_000_000,
                    ..settings(&server)
                };
                beginning.spawn(async move {
                    let connected = NatsBus::connect(settings, &bus_conformance::LAYOUT);
                    soon(connected).await.map(drop)
                });
            }
            while let Some(begun) = beginning.join_next().await {
                begun.unwrap().unwrap();
            }
        }
    }
}

#[tokio::test]
async fn a_server_without_jetstream_is_refused() {
    for program in programs() {
        let server = Server::start_with(&program, &[]).await;
        let error = fails(settings(&server)).await;
        assert!(
            matches!(error, ConnectError::NoJetStream { .. }),
            "{error:?}"
        );
        assert!(error.to_string().contains("-js"), "{error}");
    }
}

#[tokio::test]
async fn replicas_that_a_lone_server_cannot_keep_are_refused_by_name() {
    for program in programs() {
        let server = Server::start(&program).await;
        let error = fails(Settings {
            replicas: 3,
            ..settings(&server)
        })
        .await;
        assert!(
            matches!(&error, ConnectError::Stream { name, .. } if name.starts_with("rankway_"))
        );
    }
}

/// What preparing the streams takes of a user, who is told what the server says and what to do.
#[tokio::test]
async fn users_who_may_not_make_streams_or_hear_answers_are_told_what_to_do() {
    let table = [
        ("_INBOX_a", "JS.API.STREAM.CREATE", "rankway setup"),
        ("_INBOX", "_INBOX", "bus.inbox"),
    ];
    for program in programs() {
        let user = "authorization: { users: [ { user: a, password: b, permissions: { \
                    publish: [\"$JS.API.STREAM.INFO.*\"], subscribe: [\"_INBOX_a.>\"] } } ] }\n";
        let configuration = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(configuration.path(), user).unwrap();
        let path = configuration.path().to_str().unwrap();
        let server = Server::start_with(&program, &["-js", "-c", path]).await;
        for (inbox, said, remedy) in table {
            let error = fails(Settings {
                inbox: inbox.to_owned(),
                login: Login::User {
                    user: "a".to_owned(),
                    password: "b".to_owned(),
                },
                ..settings(&server)
            })
            .await;
            assert!(matches!(error, ConnectError::Forbidden { .. }), "{error:?}");
            let text = error.to_string();
            assert!(text.contains(said) && text.contains(remedy), "{text}");
        }
    }
}

#[tokio::test]
async fn a_server_that_is_too_old_is_refused() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut old = JoinSet::new();
    old.spawn(async move {
        let (mut connection, _) = listener.accept().await.unwrap();
        let info = r#"{"server_id":"OLD","server_name":"old","version":"2.8.4","max_payload":1048576,"proto":1}"#;
        let greeting = format!("INFO {info}\r\n");
        connection.write_all(greeting.as_bytes()).await.unwrap();
        let mut buffer = [0; 4096];
        while connection.read(&mut buffer).await.is_ok_and(|it| it != 0) {
            connection.write_all(b"PONG\r\n").await.unwrap();
        }
    });
    let error = fails(Settings {
        servers: vec![format!("nats://{address}")],
        ..Settings::default()
    })
    .await;
    assert_eq!(
        error.to_string(),
        "NATS server old has version 2.8.4, and Rankway needs 2.9 or newer"
    );
}

#[tokio::test]
async fn settings_that_mean_nothing_are_named() {
    let check = async |settings: Settings, named: &str| {
        let error = fails(settings).await;
        assert!(matches!(error, ConnectError::Setting { setting, .. } if setting == named));
    };
    let prefix = Settings {
        prefix: "two words".to_owned(),
        ..Settings::default()
    };
    check(prefix, "prefix").await;
    let nothing = Settings {
        deletions_kept: std::time::Duration::ZERO,
        ..Settings::default()
    };
    check(nothing, "deletions_kept and topic_bytes").await;
    for servers in [
        vec![],
        vec!["http://127.0.0.1".to_owned()],
        vec!["::::".to_owned()],
    ] {
        let servers = Settings {
            servers,
            ..Settings::default()
        };
        check(servers, "servers").await;
    }
}

async fn fails(settings: Settings) -> ConnectError {
    let connected = soon(NatsBus::connect(settings, &bus_conformance::LAYOUT)).await;
    connected.err().expect("a refusal")
}
