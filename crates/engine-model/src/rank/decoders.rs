//! Running sequences that only decode. Between the blocks they fill, all that comes of a pass is one more token of each:
//! where nobody is told of tokens, such quiet passes are counted, and entered when something else happens.

use domain::BlockSize;

use super::Sequence;

/// The sequences at the beginning of a rank's list that only decode: those that prefill were let in later, and only the
/// last of these is not done with its prompt after a pass.
#[derive(Debug, Default)]
pub(super) struct Decoders {
    /// How many.
    count: usize,
    /// The passes to come that are quiet.
    quiet: u64,
    /// Passes that have ended and are not entered yet.
    behind: u64,
    /// Whether the pass under way is quiet.
    in_pass: bool,
}

impl Decoders {
    /// Begins a pass; how many sequences compute a token each and need no look.
    pub(super) const fn begin_pass(&mut self) -> usize {
        self.in_pass = self.quiet > 0;
        self.left_out()
    }

    /// Sequences that need no look in the pass under way.
    pub(super) const fn left_out(&self) -> usize {
        match self.in_pass {
            true => self.count,
            false => 0,
        }
    }

    /// Ends a pass, after which `running` is there, and looks ahead where that is needed. A pass has a token for each of
    /// at most `pass_tokens` sequences.
    pub(super) fn end_pass(
        &mut self,
        running: &mut [Sequence],
        block_size: BlockSize,
        pass_tokens: u32,
    ) {
        let was_quiet = std::mem::take(&mut self.in_pass);
        if was_quiet {
            self.quiet -= 1;
            self.behind += 1;
        }
        let joined = running.get(self.count).is_some_and(|it| !it.prefills());
        if was_quiet && self.quiet > 0 && !joined {
            return;
        }
        self.settle(running);
        self.count = running.iter().take_while(|it| !it.prefills()).count();
        let decoders = running[..self.count].iter();
        let quiet = decoders.map(|it| quiet_passes(it, u64::from(block_size.get())));
        self.quiet = match running.len() <= pass_tokens as usize {
            true => quiet.min().unwrap_or(0),
            false => 0,
        };
    }

    /// Enters what has been computed.
    fn settle(&mut self, running: &mut [Sequence]) {
        let behind = std::mem::take(&mut self.behind);
        if behind == 0 {
            return;
        }
        for sequence in &mut running[..self.count] {
            sequence.computed += behind;
            sequence.generated += behind;
        }
    }

    /// The sequence at this place is taken out.
    pub(super) fn take_out(&mut self, at: usize, running: &mut [Sequence]) {
        self.settle(running);
        if at < self.count {
            self.count -= 1;
        }
    }
}

/// Passes until one in which a sequence that decodes needs a block, fills one, or ends.
fn quiet_passes(sequence: &Sequence, block_size: u64) -> u64 {
    let filled = sequence.computed % block_size;
    let needs = (block_size - filled) % block_size;
    let fills = block_size - 1 - filled;
    let ends = (sequence.osl - 1).saturating_sub(sequence.generated);
    needs.min(fills).min(ends)
}
