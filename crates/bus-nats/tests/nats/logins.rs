//! Who may connect, and how both sides prove who they are.

use std::path::PathBuf;

use bus::Bus;
use bus_nats::{ClientCertificate, ConnectError, Login, NatsBus, Settings, Tls};

use crate::server::{Server, programs};
use crate::steps::{all, assert_no_hole, connect_with, insist, numbered, settings, soon};

/// A pair of keys that only this test uses.
const NKEY: &str = "UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4";
const NKEY_SEED: &str = "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY";

#[tokio::test]
async fn a_user_needs_the_password() {
    for program in programs() {
        let options = ["-js", "--user", "rankway", "--pass", "right"];
        let server = Server::start_with(&program, &options).await;
        let login = |password: &str| Login::User {
            user: "rankway".to_owned(),
            password: password.to_owned(),
        };
        works(&server, login("right")).await;
        refuses(&server, login("wrong")).await;
        refuses(&server, Login::None).await;
    }
}

#[tokio::test]
async fn a_token_is_needed_where_the_server_asks_for_one() {
    for program in programs() {
        let server = Server::start_with(&program, &["-js", "--auth", "right"]).await;
        works(&server, Login::Token("right".to_owned())).await;
        refuses(&server, Login::Token("wrong".to_owned())).await;
    }
}

#[tokio::test]
async fn a_user_with_an_nkey_needs_its_seed() {
    for program in programs() {
        let users = format!("authorization: {{ users: [ {{ nkey: {NKEY} }} ] }}\n");
        let configuration = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(configuration.path(), users).unwrap();
        let path = configuration.path().to_str().unwrap();
        let server = Server::start_with(&program, &["-js", "-c", path]).await;
        works(&server, Login::NkeySeed(NKEY_SEED.to_owned())).await;
        refuses(&server, Login::NkeySeed("SUAnonsense".to_owned())).await;
        refuses(&server, Login::None).await;
    }
}

#[tokio::test]
async fn a_user_with_a_jwt_needs_its_credentials() {
    for program in programs() {
        let configuration = file("jwt/server.conf");
        let options = ["-js", "-c", configuration.to_str().unwrap()];
        let server = Server::start_with(&program, &options).await;
        works(&server, Login::Credentials(file("jwt/user.creds"))).await;
        refuses(&server, Login::None).await;
        let missing = settings_of(&server, Login::Credentials(file("jwt/nobody.creds")));
        let error = fails(missing).await;
        assert!(matches!(error, ConnectError::Setting { .. }), "{error:?}");
        assert!(error.to_string().contains("nobody.creds"), "{error}");
    }
}

#[tokio::test]
async fn a_server_proves_who_it_is_by_a_certificate_of_the_ca() {
    for program in programs() {
        let server = Server::start_with(&program, &tls(&[])).await;
        let with_ca = Tls {
            required: true,
            ca: Some(file("tls/ca.pem")),
            client: None,
        };
        let bus = connect_with(Settings {
            tls: with_ca,
            ..settings(&server)
        });
        use_it(bus.await).await;

        let error = fails(settings(&server)).await;
        assert!(matches!(error, ConnectError::Unreachable { .. }));
        assert!(chain(&error).contains("certificate"), "{}", chain(&error));
    }
}

#[tokio::test]
async fn a_client_proves_who_it_is_where_the_server_asks() {
    for program in programs() {
        let server = Server::start_with(&program, &tls(&["--tlsverify"])).await;
        let tls = |client| Tls {
            required: true,
            ca: Some(file("tls/ca.pem")),
            client,
        };
        let own = ClientCertificate {
            certificate: file("tls/client.pem"),
            key: file("tls/client.key"),
        };
        let bus = connect_with(Settings {
            tls: tls(Some(own)),
            ..settings(&server)
        });
        use_it(bus.await).await;

        let error = fails(Settings {
            tls: tls(None),
            ..settings(&server)
        });
        assert!(matches!(error.await, ConnectError::Unreachable { .. }));
    }
}

#[tokio::test]
async fn a_server_in_the_clear_is_refused_where_tls_is_required() {
    for program in programs() {
        let server = Server::start(&program).await;
        let error = fails(Settings {
            tls: Tls {
                required: true,
                ..Tls::default()
            },
            ..settings(&server)
        });
        assert!(matches!(error.await, ConnectError::Unreachable { .. }));
    }
}

/// Options of a server with TLS and the certificates of this folder.
fn tls(more: &[&'static str]) -> Vec<&'static str> {
    let files = [
        "-js",
        "--tls",
        "--tlscert",
        concat!(env!("CARGO_MANIFEST_DIR"), "/tests/nats/tls/server.pem"),
        "--tlskey",
        concat!(env!("CARGO_MANIFEST_DIR"), "/tests/nats/tls/server.key"),
        "--tlscacert",
        concat!(env!("CARGO_MANIFEST_DIR"), "/tests/nats/tls/ca.pem"),
    ];
    [&files, more].concat()
}

fn file(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/nats")
        .join(name)
}

fn settings_of(server: &Server, login: Login) -> Settings {
    Settings {
        login,
        ..settings(server)
    }
}

async fn works(server: &Server, login: Login) {
    use_it(connect_with(settings_of(server, login)).await).await;
}

async fn use_it(bus: NatsBus) {
    insist(&bus, numbered(0..3)).await;
    assert_no_hole(&all(&bus).await, 0..3);
    let news = bus.append(&crate::steps::NEWS, numbered(0..1));
    soon(news).await.unwrap();
}

async fn refuses(server: &Server, login: Login) {
    let error = fails(settings_of(server, login)).await;
    assert!(matches!(error, ConnectError::Refused { .. }), "{error:?}");
    assert!(!error.is_retryable());
    assert!(error.to_string().contains(&server.address()), "{error}");
}

async fn fails(settings: Settings) -> ConnectError {
    let connected = soon(NatsBus::connect(settings, &bus_conformance::LAYOUT)).await;
    connected.err().expect("a refusal")
}

/// An error and all that it follows from.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}
