//! Which id wins, which is skipped, and which is refused.

use super::*;

type Headers = &'static [(&'static str, &'static [u8])];

fn lookup(headers: Headers) -> impl Fn(&str) -> Option<&'static [u8]> {
    move |name| {
        let found = headers.iter().find(|(key, _)| *key == name);
        found.map(|(_, value)| *value)
    }
}

fn find(headers: Headers, body: BodyIds<'static>) -> Result<Found, InvalidConversation> {
    find_conversation(&SourceKind::DEFAULT_ORDER, &lookup(headers), &body)
}

/// The id that holds by itself.
fn named(found: &Found) -> Option<&Conversation> {
    match found.claims.last() {
        Some(Claim::Named(conversation)) => Some(conversation),
        _ => None,
    }
}

fn check(headers: Headers, body: BodyIds<'static>, id: &str, name: &str) {
    let found = find(headers, body).unwrap();
    let conversation = named(&found).unwrap();
    assert_eq!(
        (conversation.id.as_str(), conversation.source.name),
        (id, name)
    );
}

const NO_BODY: BodyIds<'static> = BodyIds {
    conversation_params_conversation_id: None,
    session_id: None,
    nvext_agent_context_session_id: None,
    nvext_session_control_session_id: None,
    session_params_id: None,
    session_params_session_id: None,
    conversation: None,
    previous_response_id: None,
    prompt_cache_key: None,
};

/// What is left to go by where no id is.
const ONLY_LINEAGE: [Claim; 1] = [Claim::Lineage];

#[test]
fn each_place_is_read_and_earlier_ones_win() {
    let body = BodyIds {
        session_id: Some("b"),
        session_params_id: Some("later"),
        ..NO_BODY
    };
    let headers: Headers = &[
        ("x-session-id", b"generic"),
        ("session-id", b"root"),
        ("thread-id", b"thread"),
        ("x-rankway-conversation", b"mine"),
    ];
    check(headers, body, "mine", "x-rankway-conversation");
    check(&headers[..3], body, "b", "session_id");
    check(&headers[..3], NO_BODY, "thread", "thread-id");
    check(&headers[..2], NO_BODY, "root", "session-id");
    check(&headers[..1], NO_BODY, "generic", "x-session-id");
}

#[test]
fn a_sub_agent_is_a_conversation_of_its_own() {
    let headers: Headers = &[
        ("x-claude-code-session-id", b"session"),
        ("x-claude-code-agent-id", b"agent"),
    ];
    check(headers, NO_BODY, "agent", "x-claude-code-agent-id");
    assert_eq!(
        parent_hint(&lookup(headers)).unwrap().as_str(),
        "session",
        "started by its session"
    );
}

#[test]
fn every_body_field_is_read() {
    let id = Some("b");
    let bodies = [
        BodyIds {
            conversation_params_conversation_id: id,
            ..NO_BODY
        },
        BodyIds {
            nvext_agent_context_session_id: id,
            ..NO_BODY
        },
        BodyIds {
            nvext_session_control_session_id: id,
            ..NO_BODY
        },
        BodyIds {
            session_params_id: id,
            ..NO_BODY
        },
        BodyIds {
            session_params_session_id: id,
            ..NO_BODY
        },
    ];
    let names = [
        "conversation_params.conversation_id",
        "nvext.agent_context.session_id",
        "nvext.session_control.session_id",
        "session_params.id",
        "session_params.session_id",
    ];
    for (body, name) in bodies.into_iter().zip(names) {
        check(&[], body, "b", name);
    }
}

#[test]
fn the_order_can_be_turned_round_and_places_left_out() {
    let headers: Headers = &[
        ("x-rankway-conversation", b"mine"),
        ("x-session-id", b"generic"),
    ];
    let order = [SourceKind::Session, SourceKind::Explicit];
    let found = find_conversation(&order, &lookup(headers), &NO_BODY).unwrap();
    assert_eq!(named(&found).unwrap().id.as_str(), "generic");
    let found = find_conversation(&[SourceKind::Agent], &lookup(headers), &NO_BODY).unwrap();
    assert_eq!(found, Found::default());
}

#[test]
fn an_id_per_request_is_never_taken() {
    let headers: Headers = &[("x-request-id", b"r"), ("x-client-request-id", b"r")];
    assert_eq!(find(headers, NO_BODY).unwrap().claims, ONLY_LINEAGE);
}

#[test]
fn what_may_name_a_conversation_is_told_in_order_and_left_open() {
    let headers: Headers = &[("x-correlation-id", b"r")];
    let body = BodyIds {
        prompt_cache_key: Some("bucket"),
        ..NO_BODY
    };
    let claims = find(headers, body).unwrap().claims;
    let [
        Claim::Correlated(first),
        Claim::Bucket(second),
        Claim::Lineage,
    ] = &claims[..]
    else {
        panic!("{claims:?}");
    };
    assert_eq!((first.id.as_str(), *second), ("r", xxh3_64(b"bucket")));
    assert_eq!(first.source.kind, SourceKind::CorrelationId);
    let body = BodyIds {
        session_id: Some("s"),
        ..body
    };
    let claims = find(headers, body).unwrap().claims;
    assert!(matches!(&claims[..], [Claim::Named(it)] if it.id.as_str() == "s"));
    let order = [SourceKind::CorrelationId, SourceKind::Body];
    let claims = find_conversation(&order, &lookup(headers), &body).unwrap();
    assert!(matches!(
        &claims.claims[..],
        [Claim::Correlated(_), Claim::Named(_)]
    ));
}

#[test]
fn a_response_is_gone_on_with_under_its_own_id() {
    let body = BodyIds {
        previous_response_id: Some("resp_1"),
        ..NO_BODY
    };
    check(&[], body, "resp_1", "previous_response_id");
    assert!(!named(&find(&[], body).unwrap()).unwrap().keeps_its_id());
    let body = BodyIds {
        conversation: Some("conv_1"),
        ..body
    };
    check(&[], body, "conv_1", "conversation");
    assert!(named(&find(&[], body).unwrap()).unwrap().keeps_its_id());
    check(&[("x-session-id", b"s")], body, "s", "x-session-id");

    let long = "r".repeat(300);
    let body = BodyIds {
        previous_response_id: Some(long.clone().leak()),
        ..NO_BODY
    };
    let found = find(&[], body).unwrap();
    let asked = named(&found).map(|it| it.id.clone());
    assert_eq!(
        after_response(&long),
        asked,
        "an answer is bound as it is asked for"
    );
    assert_eq!(after_response("a\nb"), None);
}

#[test]
fn sources_are_parsed_and_printed() {
    for kind in SourceKind::DEFAULT_ORDER {
        assert_eq!(kind.to_string().parse(), Ok(kind));
    }
    assert_eq!(
        "Session".parse::<SourceKind>().unwrap_err().to_string(),
        "\"Session\" tells no conversation: choose among explicit, body, agent, session, responses, \
         correlation_id, prompt_cache_key, lineage"
    );
}

#[test]
fn a_bad_explicit_id_is_refused() {
    let long: &'static [u8] = &[b'a'; 257];
    for value in [b"".as_slice(), b"a\x07b", b"\xff", long] {
        let headers: Headers = Box::leak(Box::new([(EXPLICIT_HEADER, value)]));
        assert!(find(headers, NO_BODY).is_err(), "{value:?}");
    }
    let full: Headers = &[(EXPLICIT_HEADER, &[b'a'; 256])];
    assert!(named(&find(full, NO_BODY).unwrap()).is_some());
}

#[test]
fn a_bad_id_elsewhere_is_skipped_and_told() {
    let headers: Headers = &[
        ("thread-id", b"\xff"),
        ("session-id", b"  "),
        ("x-session-id", b" good "),
    ];
    let body = BodyIds {
        session_id: Some("a\nb"),
        ..NO_BODY
    };
    let found = find(headers, body).unwrap();
    let skipped: Vec<&str> = found.skipped.iter().map(|it| it.name).collect();
    assert_eq!(skipped, ["session_id", "thread-id", "session-id"]);
    assert_eq!(named(&found).unwrap().id.as_str(), "good");
}

#[test]
fn an_over_long_id_becomes_its_hash() {
    let headers: Headers = &[("x-session-id", &[b'a'; 300])];
    // Computed with the xxhash package of Python: xxh3_128_hexdigest(b"a" * 300).
    check(
        headers,
        NO_BODY,
        "5e563f2cb28d2005c1d17581d8eb7e21",
        "x-session-id",
    );
    let mut long = [b'a'; 300];
    long[7] = 0;
    let hostile: Headers = Box::leak(Box::new([("x-session-id", &*Vec::from(long).leak())]));
    assert_eq!(find(hostile, NO_BODY).unwrap().claims, ONLY_LINEAGE);
}

#[test]
fn a_parent_is_only_a_hint() {
    let headers: Headers = &[("x-parent-session-id", b"p")];
    assert_eq!(parent_hint(&lookup(headers)).unwrap().as_str(), "p");
    assert_eq!(find(headers, NO_BODY).unwrap().claims, ONLY_LINEAGE);
    assert_eq!(
        parent_hint(&lookup(&[("x-claude-code-session-id", b"s")])),
        None
    );
}
