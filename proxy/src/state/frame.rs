//! How commits stand in the journal, so that a write that was cut short can be told from damage.
//!
//! A frame is a commit: a header with its length and checksums, and a body. It begins on a sector
//! and fills sectors. A disk writes a sector whole or not at all, and what it has not written of a
//! new piece of a file is missing or zeros. So a last frame of which a whole sector is missing or
//! zeros was being written when the power went; no such sector is ever written, since bodies are
//! text. Any other frame that does not check is damage.

use std::fmt;

/// What disks write at once, at least.
const SECTOR: usize = 512;

/// The longest frame that is added to a journal: a larger piece of it that cannot be read is no
/// single write.
pub(super) const FRAME_BYTES_MAX: usize = 64 << 10;

/// `fencepost-1 <length> <checksum of the rest> <checksum of this>\n`, the numbers in hexadecimal.
const HEADER: usize = MAGIC.len() + 16 + 1 + 8 + 1 + 8 + 1;
const MAGIC: &str = "fencepost-1 ";
const CHECKED: usize = HEADER - 9;

/// Where the next frame hooks in: a frame checks only behind the one that it was written after.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Link(u32);

/// Makes a frame of a text, and the link for the next.
pub(super) fn write(text: &str, link: Link) -> (Vec<u8>, Link) {
    let length = (HEADER + text.len()).next_multiple_of(SECTOR);
    let mut frame = Vec::with_capacity(length);
    frame.resize(HEADER, b' ');
    frame.extend_from_slice(text.as_bytes());
    frame.resize(length - 1, b' ');
    // A body that fills its sectors needs no filling, and ends with a newline of its own.
    frame.resize(length, b'\n');
    let body = checksum(0, &frame[HEADER..]);
    let header = format!("{MAGIC}{length:016x} {body:08x} ");
    let check = checksum(link.0, header.as_bytes());
    frame[..HEADER].copy_from_slice(format!("{header}{check:08x}\n").as_bytes());
    (frame, Link(check))
}

/// The texts of all frames, without a last one that was cut short while it was written.
pub(super) fn read(journal: &[u8]) -> Result<Vec<&str>, Damage> {
    let mut texts = Vec::new();
    let (mut offset, mut link) = (0, Link::default());
    // The first frame was durable before the file got its name: it cannot be cut short, or missing.
    while offset < journal.len() || texts.is_empty() {
        let rest = &journal[offset..];
        match read_one(rest, link) {
            Ok((length, text, next)) => {
                texts.push(text);
                (offset, link) = (offset + length, next);
            }
            Err(fault) if offset > 0 && fault.is_cut_short(rest) => break,
            Err(fault) => return Err(Damage { offset, fault }),
        }
    }
    Ok(texts)
}

fn read_one(rest: &[u8], link: Link) -> Result<(usize, &str, Link), Fault> {
    let header =
        rest.get(..HEADER).and_then(|header| str::from_utf8(header).ok()).ok_or(Fault::Header)?;
    let mut words = header.trim_end().split(' ').skip(1);
    let mut number =
        || words.next().and_then(|word| u64::from_str_radix(word, 16).ok()).ok_or(Fault::Header);
    let (length, body_check, header_check) = (number()?, number()?, number()?);
    let check = checksum(link.0, &rest[..CHECKED]);
    // The text is compared as well: one header has one spelling.
    if u64::from(check) != header_check
        || header != format!("{MAGIC}{length:016x} {body_check:08x} {check:08x}\n")
    {
        return Err(Fault::Header);
    }
    let length = usize::try_from(length).map_err(|_| Fault::Missing)?;
    let body = rest.get(HEADER..length).ok_or(Fault::Missing)?;
    let text = str::from_utf8(body).ok().filter(|_| u64::from(checksum(0, body)) == body_check);
    Ok((length, text.ok_or(Fault::Body { length })?, Link(check)))
}

/// A journal that is not as it was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Damage {
    offset: usize,
    fault: Fault,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.fault {
            Fault::Header => "there is no frame of this version",
            Fault::Missing => "the frame there does not end",
            Fault::Body { .. } => "the frame there does not match its checksum",
        };
        write!(f, "at byte {}: {what}", self.offset)
    }
}

/// What is wrong with a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// The header does not check, so nothing is known of its length.
    Header,
    /// The file ends before the frame does.
    Missing,
    /// All is there, but the body does not check.
    Body { length: usize },
}

impl Fault {
    /// Whether a write that never ended explains it: the frame is the last, and a whole sector of
    /// it was not written.
    fn is_cut_short(self, rest: &[u8]) -> bool {
        let unwritten = |sector: &[u8]| sector.iter().all(|byte| *byte == 0);
        match self {
            Fault::Header => {
                let may_be_last =
                    rest.len() <= FRAME_BYTES_MAX && !rest.chunks(SECTOR).any(begins_frame);
                rest.len() < SECTOR || (may_be_last && unwritten(&rest[..SECTOR]))
            }
            Fault::Missing => true,
            Fault::Body { length } => length == rest.len() && rest.chunks(SECTOR).any(unwritten),
        }
    }
}

/// Whether a sector has the form of a header, which no text has: within a value of JSON there is no
/// end of a line.
fn begins_frame(sector: &[u8]) -> bool {
    sector.starts_with(MAGIC.as_bytes()) && sector.get(HEADER - 1) == Some(&b'\n')
}

/// CRC-32 (IEEE 802.3), going on from an earlier one. It finds any flipped bit and any damage
/// within 32 bits.
fn checksum(earlier: u32, bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!earlier, |crc, byte| {
        (crc >> 8) ^ CRC_TABLE[usize::from(crc.to_le_bytes()[0] ^ byte)]
    })
}

const CRC_TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut index = 0;
    while index < table.len() {
        let mut crc = index as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 { (crc >> 1) ^ 0xedb8_8320 } else { crc >> 1 };
            bit += 1;
        }
        table[index] = crc;
        index += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    /// Texts of all kinds of lengths: within a sector, exactly up to its end, over several.
    fn texts() -> Vec<String> {
        [0, 1, SECTOR - HEADER - 1, SECTOR - HEADER, SECTOR - HEADER + 1, 3 * SECTOR, 7]
            .map(|length| "x".repeat(length.max(1) - 1) + "\n")
            .to_vec()
    }

    /// A journal of these texts, and where each frame ends.
    fn journal(texts: &[String]) -> (Vec<u8>, Vec<usize>) {
        let (mut journal, mut ends, mut link) = (Vec::new(), Vec::new(), Link::default());
        for text in texts {
            let (frame, next) = write(text, link);
            journal.extend(frame);
            link = next;
            ends.push(journal.len());
        }
        (journal, ends)
    }

    fn check(journal: &[u8], texts: &[String]) {
        let read = read(journal).unwrap_or_else(|damage| panic!("{damage}"));
        assert!(
            read.iter().map(|text| text.trim_end()).eq(texts.iter().map(|text| text.trim_end()))
        );
    }

    #[test]
    fn frames_are_read_as_they_were_written() {
        let (journal, ends) = journal(&texts());
        check(&journal, &texts());
        assert!(ends.iter().all(|end| end % SECTOR == 0));
    }

    #[test]
    fn the_checksum_is_the_usual_one() {
        assert_eq!(checksum(0, b"123456789"), 0xcbf4_3926);
        assert_eq!(checksum(checksum(0, b"1234"), b"56789"), 0xcbf4_3926);
    }

    #[test]
    fn every_flipped_bit_is_damage() {
        let (journal, _) = journal(&texts());
        for at in 0..journal.len() {
            for bit in 0..8 {
                let mut damaged = journal.clone();
                damaged[at] ^= 1 << bit;
                assert!(read(&damaged).is_err(), "byte {at}, bit {bit}");
            }
        }
    }

    #[test]
    fn a_journal_that_ends_early_ends_with_the_last_whole_frame() {
        let (journal, ends) = journal(&texts());
        for length in 0..journal.len() {
            match ends.iter().filter(|end| **end <= length).count() {
                0 => assert!(
                    read(&journal[..length]).is_err(),
                    "the first frame is never cut short: {length}"
                ),
                whole => check(&journal[..length], &texts()[..whole]),
            }
        }
    }

    #[test]
    fn a_last_frame_with_unwritten_sectors_was_cut_short() {
        let texts = texts();
        let (journal, ends) = journal(&texts[..6]);
        let (before, last) = journal.split_at(ends[4]);
        let sectors = last.len() / SECTOR;
        for written in 0..(1_usize << sectors) - 1 {
            let mut torn = last.to_vec();
            for (index, sector) in torn.chunks_mut(SECTOR).enumerate() {
                if written >> index & 1 == 0 {
                    sector.fill(0);
                }
            }
            check(&[before, &torn].concat(), &texts[..5]);
        }
    }

    #[test]
    fn an_unwritten_sector_in_the_middle_is_damage() {
        let (journal, ends) = journal(&texts());
        // Headers as well: all that was written behind one was taken for the rest of a write that
        // never ended.
        for at in (0..ends[5]).step_by(SECTOR) {
            let mut damaged = journal.clone();
            damaged[at..at + SECTOR].fill(0);
            assert!(read(&damaged).is_err(), "at {at}");
        }
        let mut large = journal.clone();
        large[ends[0]..ends[1]].fill(0);
        large.resize(ends[0] + FRAME_BYTES_MAX + SECTOR, 0);
        assert!(read(&large).is_err(), "more than one write can be");
    }

    #[test]
    fn a_frame_checks_only_in_its_place() {
        let (journal, ends) = journal(&texts());
        let without_second = [&journal[..ends[0]], &journal[ends[1]..]].concat();
        assert!(read(&without_second).is_err());
        let second_twice = [&journal[..ends[1]], &journal[ends[0]..]].concat();
        assert!(read(&second_twice).is_err());
    }
}
