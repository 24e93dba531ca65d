//! The prompt of a text completion.

use std::fmt;

use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// A prompt: text, token ids, or a list of exactly one of either. Token ids are read without a detour,
/// since prompts of a hundred thousand are common.
pub(super) enum Prompt {
    Text(String),
    Tokens(Vec<u32>),
}

impl<'de> Deserialize<'de> for Prompt {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(PromptVisitor)
    }
}

struct PromptVisitor;

impl<'de> Visitor<'de> for PromptVisitor {
    type Value = Prompt;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text, a list of token ids, or a list of one of these")
    }

    fn visit_str<E>(self, text: &str) -> Result<Prompt, E> {
        Ok(Prompt::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Prompt, A::Error> {
        let mut tokens = match list.next_element()? {
            None => return Ok(Prompt::Tokens(Vec::new())),
            Some(Element::Token(token)) => vec![token],
            Some(Element::Prompt(prompt)) => {
                return match list.next_element::<serde::de::IgnoredAny>()? {
                    None => Ok(prompt),
                    Some(_) => Err(A::Error::custom(
                        "only one prompt per request is served here",
                    )),
                };
            }
        };
        while let Some(token) = list.next_element()? {
            tokens.push(token);
        }
        Ok(Prompt::Tokens(tokens))
    }
}

/// What a list may begin with.
enum Element {
    Token(u32),
    Prompt(Prompt),
}

impl<'de> Deserialize<'de> for Element {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ElementVisitor)
    }
}

struct ElementVisitor;

impl<'de> Visitor<'de> for ElementVisitor {
    type Value = Element;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a token id, a text or a list of token ids")
    }

    fn visit_u64<E: serde::de::Error>(self, token: u64) -> Result<Element, E> {
        let out_of_range = |_| E::custom(format!("{token} is no token id"));
        u32::try_from(token)
            .map(Element::Token)
            .map_err(out_of_range)
    }

    fn visit_str<E>(self, text: &str) -> Result<Element, E> {
        Ok(Element::Prompt(Prompt::Text(text.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Element, A::Error> {
        let mut tokens = Vec::new();
        while let Some(token) = list.next_element()? {
            tokens.push(token);
        }
        Ok(Element::Prompt(Prompt::Tokens(tokens)))
    }
}
