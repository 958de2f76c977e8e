//! A request that every reader of RFC 9112 reads alike, or none.

/// A request as it was read.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) method: String,
    pub(super) target: String,
    fields: Vec<(String, String)>,
    pub(super) trailers: Vec<(String, String)>,
}

/// Why bytes are not a whole, unambiguous request.
#[derive(Debug)]
pub(super) enum Unread {
    /// More has to come.
    Partial,
    /// Two readers could read it in two ways.
    Unclean(String),
}

type Read<T> = Result<T, Unread>;

impl Message {
    /// The fields of that name as a generous server folds names.
    pub(super) fn folded(&self, name: &str) -> Vec<(&str, &str)> {
        let alike = self.fields.iter().filter(|(written, _)| folded(written) == folded(name));
        alike.map(|(name, value)| (name.as_str(), value.as_str())).collect()
    }
}

/// A name as the most generous CGI server folds it: whatever is neither letter nor digit becomes
/// `_`.
fn folded(name: &str) -> String {
    name.chars()
        .map(|one| if one.is_ascii_alphanumeric() { one.to_ascii_uppercase() } else { '_' })
        .collect()
}

/// Whether a trailer of that name could be taken for something that decides where a request goes,
/// or whether.
pub(super) fn is_special(name: &str) -> bool {
    let folded = folded(name);
    let framing = ["HOST", "CONTENT_LENGTH", "TRANSFER_ENCODING", "CONNECTION", "UPGRADE", "TE"];
    folded.starts_with("FENCE_")
        || folded.starts_with("X_FORWARDED_")
        || framing.contains(&folded.as_str())
}

/// The first message of these bytes, and its length.
pub(super) fn read(bytes: &[u8]) -> Read<(Message, usize)> {
    let mut rest = bytes;
    let request_line = line(&mut rest)?;
    let unclean = || Unread::Unclean(format!("the request line {request_line:?}"));
    let [method, target, "HTTP/1.1"] = request_line.split(' ').collect::<Vec<_>>()[..] else {
        return Err(unclean());
    };
    if !is_token(method) || target.is_empty() {
        return Err(unclean());
    }
    let mut message = Message {
        method: method.to_owned(),
        target: target.to_owned(),
        fields: fields(&mut rest)?,
        trailers: Vec::new(),
    };
    let framing = [message.folded("content-length"), message.folded("transfer-encoding")].concat();
    match framing[..] {
        [] => {}
        [(name, length)] if name.eq_ignore_ascii_case("content-length") => {
            let length = number(length, 10)?;
            exactly(&mut rest, length)?;
        }
        [(name, "chunked")] if name.eq_ignore_ascii_case("transfer-encoding") => {
            chunks(&mut rest)?;
            message.trailers = fields(&mut rest)?;
        }
        _ => return Err(Unread::Unclean(format!("a message framed by {framing:?}"))),
    }
    Ok((message, bytes.len() - rest.len()))
}

fn chunks(rest: &mut &[u8]) -> Read<()> {
    loop {
        let size = number(&line(rest)?, 16)?;
        if size == 0 {
            return Ok(());
        }
        exactly(rest, size)?;
        if exactly(rest, 2)? != b"\r\n" {
            return Err(Unread::Unclean("a chunk longer than it says".to_owned()));
        }
    }
}

/// Fields up to the empty line.
fn fields(rest: &mut &[u8]) -> Read<Vec<(String, String)>> {
    let mut fields = Vec::new();
    loop {
        let line = line(rest)?;
        if line.is_empty() {
            return Ok(fields);
        }
        let field = line.split_once(':').filter(|(name, _)| is_token(name));
        let (name, value) = field.ok_or_else(|| Unread::Unclean(format!("the field {line:?}")))?;
        fields.push((name.to_owned(), value.trim_matches([' ', '\t']).to_owned()));
    }
}

fn is_token(name: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !name.is_empty() && name.bytes().all(fits)
}

/// A line without its end. No control byte but a tab may be in it.
fn line(rest: &mut &[u8]) -> Read<String> {
    let end = rest.windows(2).position(|two| two == b"\r\n").ok_or(Unread::Partial)?;
    let line = &rest[..end];
    *rest = &rest[end + 2..];
    if line.iter().any(|byte| byte.is_ascii_control() && *byte != b'\t') {
        return Err(Unread::Unclean(format!(
            "control bytes in {:?}",
            String::from_utf8_lossy(line)
        )));
    }
    Ok(String::from_utf8_lossy(line).into_owned())
}

fn exactly<'r>(rest: &mut &'r [u8], count: usize) -> Read<&'r [u8]> {
    let (taken, left) = rest.split_at_checked(count).ok_or(Unread::Partial)?;
    *rest = left;
    Ok(taken)
}

fn number(text: &str, radix: u32) -> Read<usize> {
    let is_plain = !text.is_empty() && text.chars().all(|digit| digit.is_digit(radix));
    let number = usize::from_str_radix(text, radix).ok().filter(|_| is_plain);
    number.ok_or_else(|| Unread::Unclean(format!("the length {text:?}")))
}
