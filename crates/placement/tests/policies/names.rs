//! How policies are written.

use placement::{Policies, Policy, Weights};

fn refused(text: &str) -> String {
    text.parse::<Policy>().unwrap_err().to_string()
}

#[test]
fn names_are_parsed_and_printed() {
    for policy in Policy::ALL {
        assert_eq!(policy.to_string(), policy.name());
        assert_eq!(policy.to_string().parse(), Ok(*policy));
    }
    let error = refused("fastest");
    let names = Policy::ALL.iter().map(|it| it.name());
    let names: Vec<&str> = names.collect();
    let listed = names.join(", ");
    assert_eq!(
        error,
        format!("\"fastest\" is not a policy: choose one of {listed}")
    );
}

#[test]
fn numbers_are_printed_where_they_are_not_the_default() {
    let weights = Weights {
        delay: 0.0,
        near_share: 0.125,
        ..Weights::DEFAULT
    };
    let text = "kv:delay=0,near_share=0.125";
    assert_eq!(Policy::Kv(weights).to_string(), text);
    assert_eq!(text.parse(), Ok(Policy::Kv(weights)));
    assert_eq!("kv:delay=3.5".parse(), Ok(Policy::KV));
}

#[test]
fn a_wrong_number_is_refused_in_words_that_say_what_there_is() {
    assert_eq!(
        refused("kv:speed=1"),
        "kv has no \"speed\": it has pending, overdue, again, delay, balance, transfer, lockstep, decode, \
         capacity, obligation, highest_utilisation, near_share, near_seconds, home_seconds"
    );
    assert_eq!(
        refused("random:speed=1"),
        "random has no \"speed\": it takes no numbers"
    );
    for value in ["1001", "-1", "NaN", "inf", "x", ""] {
        assert_eq!(
            refused(&format!("kv:delay={value}")),
            format!("kv: delay is {value:?}: write a number from 0 to 1000")
        );
    }
    assert_eq!(refused("kv:delay=1,delay=2"), "kv: delay is there twice");
    for text in ["kv:", "kv:delay", "kv:delay=1,"] {
        assert!(refused(text).ends_with("write key=value"), "{text}");
    }
}

#[test]
fn a_list_keeps_numbers_with_the_policy_before_them() {
    let list: Policies = "kv:delay=0,decode=3,random,kv".parse().unwrap();
    let weights = Weights {
        delay: 0.0,
        decode: 3.0,
        ..Weights::DEFAULT
    };
    let expected = [Policy::Kv(weights), Policy::Random, Policy::KV];
    assert_eq!(list.0, expected);
    assert!("".parse::<Policies>().is_err());
    assert!("kv,".parse::<Policies>().is_err());
    assert!("delay=1,kv".parse::<Policies>().is_err());
}
