//! Values of flags, each refused in words that say what to write.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use affinity::{Owner, UnknownOwner};
use domain::{DecisionId, WorkerId};
use http::Uri;
use placement::{Policies, Policy};
use service_kit::BusSettings;

/// An address to listen on.
pub(super) fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse()
        .map_err(|_| "write IP:port, such as 127.0.0.1:8080".to_owned())
}

/// A whole number in `range`, which `T` can hold.
pub(super) fn whole<T: TryFrom<u64>>(
    range: RangeInclusive<u64>,
) -> impl Fn(&str) -> Result<T, String> + Clone {
    move |text| {
        let number = text.parse().ok().filter(|it| range.contains(it));
        number.and_then(|it| T::try_from(it).ok()).ok_or_else(|| {
            let (least, most) = (range.start(), range.end());
            match *most {
                u64::MAX => format!("write a whole number, {least} or more"),
                _ => format!("write a whole number between {least} and {most}"),
            }
        })
    }
}

/// A number in `range`, with or without a fraction.
pub(super) fn number(range: RangeInclusive<f64>) -> impl Fn(&str) -> Result<f64, String> + Clone {
    move |text| {
        let number = text.parse().ok().filter(|it| range.contains(it));
        let (least, most) = (range.start(), range.end());
        number.ok_or_else(|| format!("write a number between {least} and {most}"))
    }
}

/// A span of time: a whole number of seconds (s), minutes (m), hours (h) or days (d), from a second to a year.
pub(super) fn span(text: &str) -> Result<Duration, String> {
    let read = || {
        let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
        let seconds = match unit {
            "s" => 1,
            "m" => 60,
            "h" => 3_600,
            "d" => 86_400,
            _ => return None,
        };
        let seconds = number.parse::<u64>().ok()?.checked_mul(seconds)?;
        (1..=365 * 86_400)
            .contains(&seconds)
            .then(|| Duration::from_secs(seconds))
    };
    read().ok_or_else(|| "write a number and s, m, h or d, such as 10m".to_owned())
}

/// A decision's id, or `last`.
pub(super) fn decision_id(text: &str) -> Result<String, String> {
    match text == "last" || text.parse::<DecisionId>().is_ok() {
        true => Ok(text.to_owned()),
        false => Err(
            "write `last`, or the 32 hexadecimal digits of an answer's x-rankway-decision header"
                .to_owned(),
        ),
    }
}

/// Who decides ranks.
pub(super) fn rank_source(text: &str) -> Result<Owner, String> {
    text.parse()
        .map_err(|error: UnknownOwner| error.to_string())
}

/// A worker, or one of its ranks as `WORKER/RANK`.
pub(crate) fn drained(text: &str) -> Result<(WorkerId, Option<u32>), String> {
    let read = || {
        let (worker, rank) = match text.split_once('/') {
            Some((worker, rank)) => (worker, Some(rank.parse().ok()?)),
            None => (text, None),
        };
        Some((worker.parse().ok()?, rank))
    };
    read().ok_or_else(|| "write WORKER or WORKER/RANK, such as w1/0".to_owned())
}

/// One rank, as `WORKER/RANK`, or `WORKER#EPOCH/RANK` of one incarnation.
pub(super) fn destination(text: &str) -> Result<String, String> {
    let read = || {
        let (place, rank) = text.rsplit_once('/')?;
        let (worker, epoch) = place.split_once('#').unwrap_or((place, "1"));
        worker.parse::<WorkerId>().ok()?;
        rank.parse::<u32>().ok()?;
        epoch.parse::<u64>().ok()
    };
    match read() {
        Some(_) => Ok(text.to_owned()),
        None => Err("write WORKER/RANK, such as w1/0; `rankway targets ls` lists them".to_owned()),
    }
}

/// Where the bus is.
pub(super) fn bus_url(text: &str) -> Result<String, String> {
    let bus = BusSettings {
        url: text.to_owned(),
        ..BusSettings::default()
    };
    match bus.check() {
        Ok(()) => Ok(text.to_owned()),
        Err(_) => Err("write nats://host:port, such as nats://127.0.0.1:4222, or local".to_owned()),
    }
}

/// Where an admin API is.
pub(super) fn admin_url(text: &str) -> Result<String, String> {
    let plain = |it: &Uri| it.scheme_str() == Some("http") && it.authority().is_some();
    match text.parse::<Uri>() {
        Ok(url) if plain(&url) => Ok(text.to_owned()),
        _ => Err("write http://host:port, such as http://127.0.0.1:8090".to_owned()),
    }
}

/// The help of a flag that takes policies.
pub(super) fn policies(what: &str) -> String {
    let names = Policy::names();
    format!("{what} of {names}; further numbers as NAME:KEY=NUMBER,KEY=NUMBER")
}

/// The policies in their order, each once.
pub(crate) fn distinct(policies: &[Policies]) -> Vec<Policy> {
    let mut distinct = Vec::new();
    for policy in policies.iter().flat_map(|it| &it.0) {
        if !distinct.contains(policy) {
            distinct.push(*policy);
        }
    }
    distinct
}
