//! Connects, and refuses what would not work later.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::ErrorCode;
use async_nats::jetstream::context::ContextBuilder;
use async_nats::jetstream::stream::Config;
use async_nats::{Client, ConnectErrorKind, ConnectOptions, ServerAddr};
use bus::Layout;
use futures::{StreamExt, stream};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::appender::Appender;
use crate::counts::Counters;
use crate::ephemeral::News;
use crate::failure::{Failure, PAYLOAD};
use crate::link::{Listener, link};
use crate::names::Names;
use crate::publish::Ids;
use crate::streams::Streams;
use crate::sweep::Sweep;
use crate::tables::TableLog;
use crate::{ConnectError, DurableLog, Login, NatsBus, Settings, TRIED};

/// How long one server may take to answer at all.
const HANDSHAKE: Duration = Duration::from_secs(2);
/// How long one try of an operation waits, so that several fit [`TRIED`].
const TRY: Duration = Duration::from_secs(2);
/// How often a server that says nothing is asked whether it is there. It is given up at the third time.
const PING: Duration = Duration::from_secs(2);
/// Between tries to connect again.
const RECONNECT: Duration = Duration::from_millis(250);
/// Commands that wait while the connection takes none, such as publications. Callers wait for room, and give up.
const COMMANDS: usize = 1024;
/// Acknowledgements awaited at once: more than the windows of all partitions.
const ACKNOWLEDGEMENTS: usize = 65_536;
/// Streams that are prepared at once.
const PREPARED_AT_ONCE: usize = 8;

pub(crate) async fn connect(settings: Settings, layout: &Layout) -> Result<NatsBus, ConnectError> {
    let names = names(&settings)?;
    let counters = Arc::new(Counters::default());
    let (listener, link) = link(counters.clone());
    let client = open(&settings, listener).await?;
    check(&client)?;
    let jetstream = ContextBuilder::new()
        .timeout(TRY)
        .ack_timeout(TRY)
        .max_ack_inflight(ACKNOWLEDGEMENTS)
        .backpressure_on_inflight(true)
        .build(client.clone());
    let streams = Streams::new(jetstream, link.clone(), names, &settings);
    let inbox = client.new_inbox();
    let ids = Ids::new(inbox.rsplit('.').next().unwrap_or(&inbox));
    let mut tasks = JoinSet::new();
    let mut prepared = Vec::new();
    let mut logs = HashMap::new();
    for topic in layout.topics {
        for at in topic.all_partitions() {
            let Some(stream) = streams.of_log(topic, &at) else {
                continue;
            };
            let (streams, counters, ids) = (streams.clone(), counters.clone(), ids.clone());
            let subject = streams.names.subject(&at);
            let (appender, appends) =
                Appender::new(streams, counters, ids, stream.clone(), subject);
            tasks.spawn(appender.run());
            prepared.push(stream.clone());
            logs.insert(at, DurableLog { stream, appends });
        }
    }
    let tables = layout.tables.iter();
    let tables: Vec<_> = tables
        .map(|it| Arc::new(TableLog::new(it, &streams)))
        .collect();
    prepared.extend(tables.iter().map(|it| it.config.clone()));
    prepare(&client, &streams, prepared).await?;
    let sweep = Sweep {
        streams: streams.clone(),
        counters: counters.clone(),
        tables: tables.clone(),
        kept: settings.deletions_kept,
    };
    tasks.spawn(sweep.run());
    Ok(NatsBus {
        layout: *layout,
        news: News::new(client.clone(), link, counters.clone()),
        client,
        streams,
        counters,
        ids,
        logs,
        tables: tables.into_iter().map(|it| (it.table, it)).collect(),
        deletions_kept: settings.deletions_kept,
        _tasks: tasks,
    })
}

/// The names of everything, if the settings make sense.
fn names(settings: &Settings) -> Result<Names, ConnectError> {
    let names = Names::new(&settings.prefix).ok_or_else(|| ConnectError::Setting {
        setting: "prefix",
        problem: format!(
            "{:?} has other than letters, digits, - and _",
            settings.prefix
        ),
    })?;
    if Names::new(&settings.inbox).is_none() {
        return Err(ConnectError::Setting {
            setting: "inbox",
            problem: format!(
                "{:?} has other than letters, digits, - and _",
                settings.inbox
            ),
        });
    }
    if settings.deletions_kept.is_zero() || settings.topic_bytes == 0 {
        return Err(ConnectError::Setting {
            setting: "deletions_kept and topic_bytes",
            problem: "neither may be nothing".to_owned(),
        });
    }
    Ok(names)
}

async fn open(settings: &Settings, listener: Listener) -> Result<Client, ConnectError> {
    let mut addresses: Vec<ServerAddr> = Vec::new();
    for server in &settings.servers {
        let address = server.parse().map_err(|error| ConnectError::Setting {
            setting: "servers",
            problem: format!("{server:?} is no address: {error}"),
        })?;
        addresses.push(address);
    }
    if addresses.is_empty() {
        return Err(ConnectError::Setting {
            setting: "servers",
            problem: "there is none".to_owned(),
        });
    }
    let listener = Arc::new(listener);
    let options = options(settings)
        .await?
        .name(&settings.name)
        .custom_inbox_prefix(&settings.inbox)
        .connection_timeout(HANDSHAKE)
        .request_timeout(Some(TRY))
        .ping_interval(PING)
        .client_capacity(COMMANDS)
        .reconnect_delay_callback(|attempts| RECONNECT * u32::from(1 < attempts))
        .event_callback(move |event| {
            listener.hear(&event);
            std::future::ready(())
        });
    options.connect(addresses).await.map_err(|source| {
        let servers = settings.servers.join(", ");
        match source.kind() {
            ConnectErrorKind::AuthorizationViolation | ConnectErrorKind::Authentication => {
                ConnectError::Refused { servers, source }
            }
            _ => ConnectError::Unreachable { servers, source },
        }
    })
}

/// Who connects, and how both sides prove it.
async fn options(settings: &Settings) -> Result<ConnectOptions, ConnectError> {
    let options = ConnectOptions::new().require_tls(settings.tls.required);
    let mut options = match &settings.login {
        Login::None => options,
        Login::User { user, password } => options.user_and_password(user.clone(), password.clone()),
        Login::Token(token) => options.token(token.clone()),
        Login::NkeySeed(seed) => options.nkey(seed.clone()),
        Login::Credentials(path) => {
            let read = options.credentials_file(path).await;
            read.map_err(|error| ConnectError::Setting {
                setting: "credentials",
                problem: format!("read {}: {error}", path.display()),
            })?
        }
    };
    if let Some(ca) = &settings.tls.ca {
        options = options.add_root_certificates(ca.clone());
    }
    if let Some(own) = &settings.tls.client {
        options = options.add_client_certificate(own.certificate.clone(), own.key.clone());
    }
    Ok(options)
}

/// Refuses a server that could not serve.
fn check(client: &Client) -> Result<(), ConnectError> {
    let info = client.server_info();
    if !client.is_server_compatible(2, 9, 0) {
        return Err(ConnectError::Version {
            server: info.server_name,
            found: info.version,
        });
    }
    if info.max_payload < PAYLOAD {
        return Err(ConnectError::Payload {
            server: info.server_name,
            found: info.max_payload,
            needed: PAYLOAD,
        });
    }
    Ok(())
}

async fn prepare(
    client: &Client,
    streams: &Streams,
    configs: Vec<Config>,
) -> Result<(), ConnectError> {
    let deadline = Instant::now() + TRIED;
    let prepare = |config: Config| async move {
        let prepared = streams.prepare(&config, deadline).await;
        prepared.map_err(|failure| (config.name, failure))
    };
    let mut prepared = stream::iter(configs)
        .map(prepare)
        .buffer_unordered(PREPARED_AT_ONCE);
    while let Some(outcome) = prepared.next().await {
        let Err((name, failure)) = outcome else {
            continue;
        };
        let server = client.server_info().server_name;
        // What a user may not do is not answered.
        if matches!(failure, Failure::Silent)
            && let Some(said) = streams.link.forbidden()
        {
            let said = said.to_string();
            return Err(ConnectError::Forbidden { server, name, said });
        }
        return Err(match failure {
            Failure::NobodyThere => ConnectError::NoJetStream { server },
            Failure::Refused(error)
                if matches!(
                    error.error_code(),
                    ErrorCode::JETSTREAM_NOT_ENABLED | ErrorCode::JETSTREAM_NOT_ENABLED_FOR_ACCOUNT
                ) =>
            {
                ConnectError::NoJetStream { server }
            }
            failure if failure.passes() => ConnectError::NotReady {
                server,
                name,
                source: Box::new(failure),
            },
            failure => ConnectError::Stream {
                name,
                source: Box::new(failure),
            },
        });
    }
    Ok(())
}
