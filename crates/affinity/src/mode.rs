//! How much bindings mean, by model.

use std::collections::BTreeMap;
use std::str::FromStr;

use domain::ModelName;

/// How much a model's bindings mean.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Nothing: none is read or written.
    Off,
    /// A live bound target is kept while it costs no more than another by the price of computing its prefix again.
    Soft,
    /// A live bound target serves the turn.
    #[default]
    Hard,
}

impl Mode {
    /// Its name in settings and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Soft => "soft",
            Self::Hard => "hard",
        }
    }
}

/// A word for no mode.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no affinity mode: choose hard, soft or off")]
pub struct UnknownMode {
    text: String,
}

impl FromStr for Mode {
    type Err = UnknownMode;

    fn from_str(text: &str) -> Result<Self, UnknownMode> {
        let modes = [Self::Off, Self::Soft, Self::Hard];
        let named = modes.into_iter().find(|it| it.name() == text);
        named.ok_or_else(|| UnknownMode {
            text: text.to_owned(),
        })
    }
}

/// What is set about how much bindings mean.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Modes {
    /// For every model that is not named.
    pub default: Mode,
    /// By model.
    pub by_model: BTreeMap<ModelName, Mode>,
}

impl Modes {
    /// How much the bindings of `model` mean.
    pub fn of(&self, model: &ModelName) -> Mode {
        self.by_model.get(model).copied().unwrap_or(self.default)
    }
}

impl From<Mode> for Modes {
    /// The same for every model.
    fn from(default: Mode) -> Self {
        Self {
            default,
            by_model: BTreeMap::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_named_model_has_its_own_mode_and_every_other_the_default() {
        let modes = Modes {
            by_model: [("chat".parse().unwrap(), Mode::Soft)].into(),
            ..Modes::default()
        };
        let of = |model: &str| modes.of(&model.parse().unwrap());
        assert_eq!((of("chat"), of("code")), (Mode::Soft, Mode::Hard));
        assert_eq!(
            Modes::from(Mode::Off).of(&"chat".parse().unwrap()),
            Mode::Off
        );
    }

    #[test]
    fn a_mode_is_read_by_its_name_alone() {
        for mode in [Mode::Off, Mode::Soft, Mode::Hard] {
            assert_eq!(mode.name().parse(), Ok(mode));
        }
        let error = "Hard".parse::<Mode>().unwrap_err();
        assert_eq!(
            error.to_string(),
            "\"Hard\" is no affinity mode: choose hard, soft or off"
        );
    }
}
