//! One process, which can be killed, frozen, cut off, and started again as it was.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::time::{sleep, timeout};

use crate::http_client::Client;
use crate::network::Place;
use crate::process::{PATIENCE, POLL};

pub(crate) struct Service {
    pub(crate) name: &'static str,
    place: Place,
    command: Vec<String>,
    log: PathBuf,
    /// Where it says whether it is ready; a process without only listens.
    pub(crate) admin: Option<String>,
    listens: u16,
    child: Child,
}

/// What is done to a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Blow {
    Kill,
    Freeze,
    Cut,
}

impl Service {
    /// Starts `command` at `place`, where it listens on a port.
    pub(crate) fn start(
        name: &'static str,
        place: Place,
        (program, args): (&str, &[String]),
        (listens, admin): (u16, Option<u16>),
        folder: &Path,
    ) -> Self {
        let command = [place.command(program), args.to_vec()].concat();
        let log = folder.join(format!("{name}.log"));
        Self {
            name,
            child: spawn(&command, &log),
            admin: admin.map(|it| format!("http://{}:{it}", place.ip)),
            place,
            command,
            log,
            listens,
        }
    }

    /// Waits until it is ready.
    pub(crate) async fn ready(&self) {
        let ready = async {
            match &self.admin {
                Some(admin) => {
                    let url = format!("{admin}/readyz");
                    let is_ready = async || {
                        let answer = Client::new().try_get(&url).await;
                        answer.is_some_and(|it| it.status == 200)
                    };
                    while !is_ready().await {
                        sleep(POLL).await;
                    }
                }
                None => {
                    let at = (self.place.ip, self.listens);
                    while TcpStream::connect(at).await.is_err() {
                        sleep(POLL).await;
                    }
                }
            }
        };
        let ready = timeout(PATIENCE, ready).await;
        ready.unwrap_or_else(|_| panic!("{} is not ready:\n{}", self.name, self.log()));
    }

    pub(crate) async fn strike(&mut self, blow: Blow) {
        match blow {
            Blow::Kill => self.child.kill().await.unwrap(),
            Blow::Freeze => self.signal("-STOP").await,
            Blow::Cut => self.place.cut(true),
        }
    }

    pub(crate) async fn revive(&mut self, blow: Blow) {
        match blow {
            Blow::Kill => self.child = spawn(&self.command, &self.log),
            Blow::Freeze => self.signal("-CONT").await,
            Blow::Cut => self.place.cut(false),
        }
    }

    async fn signal(&self, signal: &str) {
        let id = self.child.id().unwrap().to_string();
        let sent = Command::new("kill").args([signal, &id]).status().await;
        assert!(sent.unwrap().success());
    }

    /// The last of what it has logged.
    pub(crate) fn log(&self) -> String {
        let log = String::from_utf8_lossy(&fs::read(&self.log).unwrap()).into_owned();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }
}

fn spawn(command: &[String], log: &Path) -> Child {
    let log = File::options().create(true).append(true).open(log).unwrap();
    let mut process = Command::new(&command[0]);
    process.args(&command[1..]).stdin(Stdio::null());
    process.stdout(log.try_clone().unwrap()).stderr(log);
    let spawned = process.kill_on_drop(true).spawn();
    spawned.unwrap_or_else(|why| panic!("{}: {why}", command[0]))
}
