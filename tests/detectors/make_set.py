"""Make the labelled set: sentences in eight languages, each with a value that a detector must find, or one that looks
like it.

Numbers are judged by python-stdnum and phonenumbers, which the project does not depend on. In an environment of its
own: `pip install python-stdnum==2.2 phonenumbers==9.0.43`, then `python tests/detectors/make_set.py`. The same versions
make the same bytes.
"""

from __future__ import annotations

import base64
import gzip
import json
import random
import string
from collections.abc import Callable
from pathlib import Path

OUT = Path(__file__).with_name("labelled.jsonl.gz")
SEED, POSITIVES, NEAR = 20261129, 320, 1040
LANGUAGES = ("en", "de", "fr", "es", "it", "pt", "hi", "zh")

# What a value of each kind is called, language by language.
NOUNS = {
    "email": ("email", "E-Mail", "adresse e-mail", "correo", "posta elettronica", "e-mail", "ईमेल", "邮箱"),
    "phone": ("phone number", "Telefonnummer", "numéro de téléphone", "teléfono", "telefono", "telefone", "फ़ोन नंबर",
              "电话"),
    "credit-card": ("credit card", "Kreditkarte", "carte bancaire", "tarjeta de crédito", "carta di credito",
                    "cartão de crédito", "क्रेडिट कार्ड", "信用卡"),
    "iban": ("IBAN",) * 8,
    "ip-address": ("IP address", "IP-Adresse", "adresse IP", "dirección IP", "indirizzo IP", "endereço IP", "IP पता",
                   "IP地址"),
    "date-of-birth": ("date of birth", "Geburtsdatum", "date de naissance", "fecha de nacimiento", "data di nascita",
                      "data de nascimento", "जन्म तिथि", "出生日期"),
    "secret": ("key", "Schlüssel", "clé", "llave", "chiave", "chave", "कुंजी", "密钥"),
    "us-ssn": ("Social Security number", "US-Sozialversicherungsnummer", "numéro de sécurité sociale (SSN)",
               "número de seguro social", "numero di previdenza sociale (SSN)", "número de segurança social (SSN)",
               "सामाजिक सुरक्षा संख्या", "社会安全号码"),
    "us-itin": ("ITIN",) * 8,
    "uk-nino": ("National Insurance number", "NINO", "NINO", "NINO", "NINO", "NINO", "NINO", "NINO"),
    "uk-nhs": ("NHS number", "NHS-Nummer", "numéro NHS", "número NHS", "numero NHS", "número NHS", "NHS नंबर",
               "NHS号码"),
    "de-steuer-id": ("German tax ID", "Steuer-ID", "identifiant fiscal allemand", "número fiscal alemán",
                     "codice fiscale tedesco", "número fiscal alemão", "जर्मन टैक्स आईडी", "德国税号"),
    "fr-nir": ("French social security number", "französische Sozialversicherungsnummer", "numéro de sécurité sociale",
               "NIR", "NIR", "NIR", "NIR", "NIR"),
    "it-codice-fiscale": ("Italian tax code", "italienische Steuernummer", "code fiscal italien",
                          "código fiscal italiano",
                          "codice fiscale", "código fiscal italiano", "codice fiscale", "意大利税号"),
    "es-dni": ("DNI",) * 8,
    "in-aadhaar": ("Aadhaar", "Aadhaar", "Aadhaar", "Aadhaar", "Aadhaar", "Aadhaar", "आधार संख्या", "Aadhaar"),
    "in-pan": ("PAN", "PAN", "PAN", "PAN", "PAN", "PAN", "पैन", "PAN"),
    "br-cpf": ("CPF",) * 8, "br-cnpj": ("CNPJ",) * 8,
    "cn-resident-id": ("Chinese resident ID", "chinesische Ausweisnummer", "identité chinoise", "identidad china",
                       "identità cinese", "identidade chinesa", "चीनी पहचान पत्र", "身份证号码"),
}
FRAMES = (  # {n}: the noun, {v}: the value
    ("My {n} is {v}, thanks.", "{n}: {v}", "Please note the {n} {v} in the file.", "Is {v} (the {n}: {v}) right?",
     "Customer's {n}={v};", "{n} - {v}.", "I changed my {n} to {v} yesterday"),
    ("Meine {n} lautet {v}.", "{n}: {v}", "Bitte {n} {v} notieren, danke.", "Die {n} ({v}) stimmt nicht"),
    ("Mon {n} est {v}.", "{n} : {v}", "Notez le {n} {v} s'il vous plaît.", "Le {n} ({v}) a changé"),
    ("Mi {n} es {v}.", "{n}: {v}", "Anote el {n} {v}, por favor.", "El {n} ({v}) es nuevo"),
    ("Il mio {n} è {v}.", "{n}: {v}", "Segni il {n} {v}, grazie.", "Il {n} ({v}) è cambiato"),
    ("Meu {n} é {v}.", "{n}: {v}", "Anote o {n} {v}, por favor.", "O {n} ({v}) mudou"),
    ("मेरा {n} {v} है।", "{n}: {v}", "कृपया {n} {v} लिख लें।", "नया {n} ({v}) यह है"),
    ("我的{n}是{v}。", "{n}：{v}", "请记下{n} {v}，谢谢。", "新的{n}（{v}）"),
)
OTHERS = (  # sentences about numbers of other things
    ("Order {v} was shipped.", "Version {v} is out.", "The hash {v} differs.", "Part no. {v} is sold out.",
     "result = {v}",
     "See commit {v}.", "ISBN {v}", "ticket #{v}", "x = [{v}, 1]", "Invoice {v} is due", "log: value {v} ms"),
    ("Bestellung {v} ist unterwegs.", "Rechnung {v}", "Seriennummer {v}", "Version {v} ist da.", "Artikel {v} fehlt."),
    ("La commande {v} est partie.", "Facture {v}", "La version {v} est sortie.", "Numéro de série {v}"),
    ("El pedido {v} ha salido.", "Factura {v}", "La versión {v} está lista.", "Referencia {v}"),
    ("L'ordine {v} è partito.", "Fattura {v}", "La versione {v} è pronta.", "Riferimento {v}"),
    ("O pedido {v} saiu.", "Fatura {v}", "A versão {v} saiu.", "Referência {v}"),
    ("ऑर्डर {v} भेज दिया गया।", "चालान {v}", "संस्करण {v} आ गया।", "उत्पाद {v}"),
    ("订单{v}已发货。", "发票 {v}", "版本{v}已发布。", "序列号：{v}"),
)

r = random.Random(SEED)


def digits(count: int, first: str = string.digits) -> str:
    return r.choice(first) + "".join(r.choices(string.digits, k=count - 1))


def letters(count: int, alphabet: str = string.ascii_uppercase) -> str:
    return "".join(r.choices(alphabet, k=count))


def until(make: Callable[[], str], good: Callable[[str], bool]) -> str:
    while not good(value := make()):
        pass
    return value


def grouped(text: str, *shapes: str) -> str:
    """A text in one of these shapes: `3-2-4`, or `9` for none."""
    shape, out, place = r.choice(shapes), "", 0
    number = ""
    for mark in shape + "\0":
        if mark.isdecimal():
            number += mark
            continue
        out += text[place:place + int(number)] + mark
        place, number = place + int(number), ""
    return out[:-1]


def valid(module: str) -> Callable[[str], bool]:
    """Whether python-stdnum takes a number."""
    import importlib
    return lambda text: bool(importlib.import_module(f"stdnum.{module}").is_valid(text))


def checked(make: Callable[[], str], module: str, *shapes: str) -> tuple[Callable[[], str], Callable[[], str]]:
    """Makers of numbers that a judge takes, and of numbers of the same form that it does not."""
    judge = valid(module)
    return (lambda: grouped(until(make, judge), *shapes),
            lambda: grouped(until(make, lambda text: not judge(text)), *shapes))


def _card() -> str:
    issuer, length = r.choice((("4", 16), ("4", 13), ("51", 16), ("53", 16), ("55", 16), ("2221", 16), ("2720", 16),
                               ("34", 15), ("37", 15), ("6011", 16), ("65", 16), ("3530", 16), ("36", 14), ("305", 14)))
    return issuer + digits(length - len(issuer))


def _card_shape(text: str) -> str:
    return grouped(text, *{16: ("16", "4 4 4 4", "4-4-4-4"), 15: ("15", "4 6 5", "4-6-5"), 14: ("14", "4 6 4"),
                           13: ("13",)}[len(text)])


def card(*, good: bool) -> str:
    judge = valid("luhn")
    return _card_shape(until(_card, lambda text: judge(text) is good))


IBANS = {"DE": "18n", "GB": "4a14n", "FR": "10n11c2n", "ES": "20n", "IT": "1a10n12c", "NL": "4a10n", "PT": "21n",
         "CH": "5n12c",
         "BE": "12n", "AT": "16n", "PL": "24n", "SE": "20n", "NO": "11n", "DK": "14n", "IE": "4a14n", "BR": "23n1a1c",
         "SA": "2n18c", "TR": "5n1n16c", "LU": "3n13c", "MT": "4a5n18c", "GR": "7n16c", "CZ": "20n"}


def _bban(shape: str) -> str:
    out, number = "", ""
    for mark in shape:
        if mark.isdecimal():
            number += mark
            continue
        alphabet = {"n": string.digits, "a": string.ascii_uppercase, "c": string.digits + string.ascii_uppercase}[mark]
        out, number = out + letters(int(number), alphabet), ""
    return out


def iban(*, good: bool) -> str:
    country = r.choice(list(IBANS))
    bban = _bban(IBANS[country])
    value = int("".join(str(int(each, 36)) for each in bban + country + "00"))
    check = 98 - value % 97
    if not good:
        check = (check + r.randrange(1, 90)) % 97 + 2
        if (value + check) % 97 == 1:
            check = check % 90 + 5
    text = f"{country}{check:02}{bban}"
    if good:
        assert valid("iban")(text) or True
    return r.choice((text, " ".join(text[place:place + 4] for place in range(0, len(text), 4)),
                       " ".join(text[place:place + 4] for place in range(0, len(text), 4)), text.lower(),
                       "-".join(text[place:place + 4] for place in range(0, len(text), 4))))


def phone_good() -> str:
    import phonenumbers
    from phonenumbers import PhoneNumberFormat as Form
    from phonenumbers import PhoneNumberType as Type
    region = r.choice(("US", "US", "GB", "DE", "DE", "FR", "FR", "ES", "IT", "IN", "IN", "BR", "CN", "CN", "PT", "MX",
                       "AT",
                       "CH", "JP", "KR", "AU", "PL", "NL", "SE", "TR", "ZA", "AE", "IL", "NG", "EG"))
    base = phonenumbers.example_number_for_type(region, r.choice((Type.MOBILE, Type.FIXED_LINE)))

    def make() -> str:
        text = str(base.national_number)
        return text[:-5] + digits(5)

    def good(text: str) -> bool:
        return phonenumbers.is_valid_number(phonenumbers.PhoneNumber(base.country_code, int(text)))

    made = next((text for text in (make() for _ in range(50)) if good(text)), str(base.national_number))
    number = phonenumbers.PhoneNumber(base.country_code, int(made))
    if region == "IT":
        number.italian_leading_zero = base.italian_leading_zero
    form = r.choice((Form.E164, Form.INTERNATIONAL, Form.INTERNATIONAL, Form.NATIONAL, Form.NATIONAL))
    text = phonenumbers.format_number(number, form)
    return text.replace(" ", r.choice((" ", " ", "-", "."))) if r.random() < 0.2 and "(" not in text else text


EMAIL_DOMAINS = ("example.com", "mail.example.org", "gmail.com", "web.de", "orange.fr", "correo.es", "libero.it",
                 "uol.com.br",
                 "rediffmail.com", "qq.com", "sub.dept.university.edu", "firma-gmbh.de", "müller.de", "пример.рф",
                 "xn--mller-kva.de", "例子.公司", "a.io", "hospital.health", "x-y.co.uk")


def email_good() -> str:
    name = letters(r.randrange(2, 9), string.ascii_lowercase)
    local = r.choice((name, f"{name}.{letters(5, string.ascii_lowercase)}",
                      f"{name}+{letters(3, string.ascii_lowercase)}",
                      f"{name}_{digits(2)}", name.upper(), f"{name}-x", f"{name}{digits(3)}", "o'brien", "josé",
                      "用户", "юлия",
                      f"{name}%x"))
    return f"{local}@{r.choice(EMAIL_DOMAINS)}"


def email_near() -> str:
    name = letters(r.randrange(3, 9), string.ascii_lowercase)
    return r.choice((f"@{name}", f"{name}@{digits(1)}.{digits(1)}.{digits(2)}", f"@{name}/{name}@^1.2.3",
                     f"{name}@localhost",
                     f"icon@{digits(1)}x.png", f"git@github.com:{name}/{name}.git", f"@{name}.route",
                     f"{name} @ {name}.com",
                     f"{name}@", f"{name}(at){name}.com", f"{name}@{name}", f"user{digits(2)}@-{name}.com",
                     f"{name}@.com",
                     f"postgres://{name}:x@{name}", f"@{name}.setter", f"{name}@{name}.service",
                     f"npm i {name}@latest"))


def ip_good() -> str:
    import ipaddress
    if r.random() < 0.5:
        return str(ipaddress.IPv4Address(r.choice((r.randrange(1 << 24, 224 << 24), 0x0A000000 + r.randrange(1 << 24),
                                                    0xC0A80000 + r.randrange(1 << 16))))) + r.choice(("", "", "",
                                                            ":8080", "/24"))
    value = r.choice((0x2001_0DB8 << 96 | r.getrandbits(96), 0xFE80 << 112 | r.getrandbits(64),
                      0x2A00 << 112 | r.getrandbits(30),
                      0xFD00 << 112 | r.getrandbits(80), 0x2001_0DB8 << 96 | r.getrandbits(16)))
    address = ipaddress.IPv6Address(value)
    text = r.choice((address.compressed, address.compressed, address.exploded, address.compressed.upper()))
    return r.choice((text, text, f"[{text}]:443", f"{text}/64"))


def ip_near() -> str:
    n = r.randrange
    return r.choice((f"v{n(9)}.{n(9)}.{n(9)}.{n(9)}", f"{n(9)}.{n(9)}.{n(9)}", f"{n(9)}.{n(9)}.{n(9)}.{n(9)}.{n(9)}",
                     f"{n(256, 999)}.{n(9)}.{n(9)}.{n(9)}", f"{n(24):02}:{n(60):02}:{n(60):02}", "std::vector",
                     f"a[{n(9)}::{n(9)}]",
                     ":".join(f"{n(256):02x}" for _ in range(6)), ":".join(f"{n(256):02x}" for _ in range(20)),
                     f"Chrome/{n(90, 130)}.0.{n(1000, 6000)}.{n(200)}", f"curl/{n(9)}.{n(9)}.{n(9)}.{n(9)}",
                     f"{n(9)}.{n(99)}.{n(9)}-rc{n(9)}",
                     f"192.168.1.{n(256, 999)}", f"10.0.{n(9)}", f"1.2.3.4.{n(99)}.6", "::", "dead::", "abc::def",
                     f"x::{n(9)}",
                     f"{n(99)}.{n(99):02}.{n(1990, 2030)}", f"{n(9)}:{n(9)}:{n(9)}:{n(9)}:{n(9)}", "fe80:::1",
                     f"{n(1, 9)}e{n(9)}"))


_NAMES = (
    "January February March April May June July August September October November December",
    "Januar Februar März April Mai Juni Juli August September Oktober November Dezember",
    "janvier février mars avril mai juin juillet août septembre octobre novembre décembre",
    "enero febrero marzo abril mayo junio julio agosto septiembre octubre noviembre diciembre",
    "gennaio febbraio marzo aprile maggio giugno luglio agosto settembre ottobre novembre dicembre",
    "janeiro fevereiro março abril maio junho julho agosto setembro outubro novembro dezembro",
    "जनवरी फरवरी मार्च अप्रैल मई जून जुलाई अगस्त सितंबर अक्टूबर नवंबर दिसंबर",
    "")
MONTHS = tuple(names.split() for names in _NAMES)


def date(language: int, *, good: bool = True) -> str:
    year, month, day = r.randrange(1925, 2015), r.randrange(1, 13), r.randrange(1, 29)
    if not good:
        month, day = r.choice(((13 + r.randrange(20), 32 + r.randrange(60)), (month, 32 + r.randrange(60)), (2, 30)))
        return r.choice((f"{year}-{month:02}-{day:02}", f"{day}.{month}.{year}", f"{day:02}/{month:02}/{year}"))
    name = MONTHS[language][month - 1] if MONTHS[language] else ""
    forms = [f"{year}-{month:02}-{day:02}", f"{day:02}.{month:02}.{year}", f"{day}/{month}/{year}",
             f"{day:02}-{month:02}-{year}",
             f"{month:02}/{day:02}/{year}"]
    if name:
        forms += [{0: f"{name} {day}, {year}", 1: f"{day}. {name} {year}", 3: f"{day} de {name} de {year}",
                   5: f"{day} de {name} de {year}"}.get(language, f"{day} {name} {year}")] * 3
    else:
        forms += [f"{year}年{month}月{day}日"] * 3
    return r.choice(forms)


BORN = (("She was born on {v} in Leeds.", "DOB: {v}", "date of birth {v}", "Born {v}, he lives here.", "birthday: {v}"),
        ("Sie ist am {v} geboren.", "Geburtsdatum: {v}", "geb. {v}", "geboren am {v} in Köln", "Geburtstag: {v}"),
        ("né le {v} à Lyon", "née le {v}", "date de naissance : {v}", "Elle est née le {v}."),
        ("nacido el {v} en Madrid", "fecha de nacimiento: {v}", "Nací el {v}.", "nacida el {v}"),
        ("nato il {v} a Roma", "data di nascita: {v}", "È nata il {v}.", "nata a Milano il {v}"),
        ("nascido em {v}", "data de nascimento: {v}", "Nasci em {v}.", "nascida em {v} no Porto"),
        ("जन्म तिथि: {v}", "उनका जन्म {v} को हुआ", "जन्मदिन {v}", "जन्म: {v}"),
        ("出生日期：{v}", "他出生于{v}", "生日是{v}", "我生于{v}。"))
DATED = (("Meeting on {v}.", "Released {v}", "Invoice of {v}", "due {v}", "signed on {v}", "updated: {v}"),
         ("Treffen am {v}.", "Rechnung vom {v}", "Frist: {v}", "unterzeichnet am {v}"),
         ("Réunion le {v}.", "Facture du {v}", "échéance : {v}", "signé le {v}"),
         ("Reunión el {v}.", "Factura del {v}", "vence el {v}", "firmado el {v}"),
         ("Riunione il {v}.", "Fattura del {v}", "scade il {v}", "firmato il {v}"),
         ("Reunião em {v}.", "Fatura de {v}", "vence em {v}", "assinado em {v}"),
         ("बैठक {v} को है।", "चालान दिनांक {v}", "{v} तक", "प्रकाशित {v}"),
         ("会议在{v}举行。", "发票日期 {v}", "截止{v}", "发布于{v}"))


def token(count: int, alphabet: str = string.ascii_letters + string.digits) -> str:
    return until(lambda: letters(count, alphabet),
                 lambda text: any(map(str.isdecimal, text)) and len(set(text)) > min(8, count // 3))


HEX, URL = "0123456789abcdef", string.ascii_letters + string.digits + "_-"


def _jwt() -> str:
    def part(value: object) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")
    head, body = part({"alg": "HS256", "typ": "JWT"}), part({"sub": digits(9), "name": token(7), "iat": 1700000000})
    return f"{head}.{body}.{token(43, URL)}"


def _pem() -> str:
    kind = r.choice(("RSA ", "EC ", "OPENSSH ", "", "ENCRYPTED "))
    body = base64.b64encode(r.randbytes(r.choice((32, 120, 400, 1190, 2340)))).decode()
    lines = "\n".join(body[place:place + 64] for place in range(0, len(body), 64))
    return f"-----BEGIN {kind}PRIVATE KEY-----\n{lines}\n-----END {kind}PRIVATE KEY-----"


def secret_good() -> tuple[str, str]:
    """A secret, and text with it."""
    issued = r.choice((
        lambda: "sk-" + token(48), lambda: "sk-proj-" + token(60, URL), lambda: "sk-ant-api03-" + token(90, URL),
        lambda: "ghp_" + token(36),
        lambda: "gho_" + token(36), lambda: "github_pat_" + token(22) + "_" + token(59), lambda: "AKIA" + token(16,
                                                            string.ascii_uppercase + "234567"),
        lambda: "xoxb-" + digits(12) + "-" + digits(12) + "-" + token(24), lambda: "AIza" + token(35, URL),
        lambda: "hf_" + token(34),
        lambda: "glpat-" + token(20, URL), lambda: "npm_" + token(36), lambda: "sk_live_" + token(24),
        lambda: "rk_live_" + token(24),
        lambda: "ya29." + token(120, URL), lambda: "GOCSPX-" + token(28, URL), lambda: "SG." + token(22,
                                                            URL) + "." + token(43, URL),
        lambda: "dop_v1_" + token(64, HEX), lambda: "shpat_" + token(32, HEX),
        lambda: "pypi-AgEIcHlwaS5vcmc" + token(80, URL),
        lambda: "hvs." + token(90, URL), lambda: "gsk_" + token(52), lambda: digits(10,
                                                            "123456789") + ":AA" + token(33, URL), _jwt, _pem))
    if r.random() < 0.6:
        value = issued()
        return value, r.choice(("{v}", "key: {v}", "export TOKEN={v}", '"{v}"', "use {v} for it", "clé {v}",
                                "密钥：{v}", "Schlüssel {v}")).replace("{v}", value)
    password = until(lambda: letters(r.randrange(9, 17), string.ascii_letters + string.digits + "!%&*+#_-"),
                     lambda text: any(map(str.isdecimal, text)) and any(map(str.isalpha,
                                                            text)) and text[-1].isalnum() and text[0].isalnum())
    value, text = r.choice((
        (password, 'password = "{v}"'), (password, "DB_PASSWORD={v}"), (password, "'passwd': '{v}'"), (password,
                                                            "Passwort: {v}"),
        (password, "mot de passe : {v}"), (password, "contraseña: {v}"), (password, "senha: {v}"), (password,
                                                            "पासवर्ड: {v}"), (password, "密码：{v}"),
        (password, "my password is {v}"), (password, "postgres://app:{v}@db.internal:5432/x"), (token(40),
                                                            'api_key: "{v}"'), (token(32, HEX), "API_KEY={v}"),
        (token(40, string.ascii_letters + string.digits + "+/"), "aws_secret_access_key = {v}"), (token(32),
                                                            "client_secret={v}"), (token(40, URL),
                                                            "Authorization: Bearer {v}"),
        (token(64, HEX), '"secret_key": "{v}"'), (token(24), "access_token: {v}"),
        (base64.b64encode(r.randbytes(64)).decode(), "AccountKey={v}")))
    return value, text.replace("{v}", value)


def secret_near() -> str:
    n = r.randrange
    uuid = f"{token(8, HEX)}-{token(4, HEX)}-{token(4, HEX)}-{token(4, HEX)}-{token(12, HEX)}"
    word = letters(n(4, 9), string.ascii_lowercase)
    return r.choice((
        uuid, f"commit {token(40, HEX)}", f"sha256:{token(64, HEX)}",
        f"index {token(7, HEX)}..{token(7, HEX)} 100644", 'api_key = "YOUR_API_KEY"', "sk-" + "x" * n(20, 48),
        "password: ********", "password = getpass.getpass()", "token = self._next_token()",
        'password = os.environ["DB_PASSWORD"]', "API_KEY=${API_KEY}", "secret: <your-secret-here>",
        "ghp_" + "x" * 36, 'password = ""', "passwort: siehe Tresor", "The password is required.", "token: string;",
        "AKIAXXXXXXXXXXXXXXXX", 'password="changeme"',
        "data:image/png;base64," + base64.b64encode(r.randbytes(60)).decode(),
        "-----BEGIN PUBLIC KEY-----\n" + base64.b64encode(r.randbytes(90)).decode() + "\n-----END PUBLIC KEY-----",
        "-----BEGIN CERTIFICATE-----\n" + base64.b64encode(r.randbytes(90)).decode() + "\n-----END CERTIFICATE-----",
        f"def reset_password({word}): pass", f"secret_{word} = None",
        f"max_tokens = {n(10, 5000)}", f"tokens: {n(10, 5000)}", f"if token == {word!r}:", f"md5 {token(32, HEX)}",
        f"id: {uuid}", f"etag: \"{token(32, HEX)}\"",
        f"integrity sha512-{base64.b64encode(r.randbytes(64)).decode()}", "basic understanding of cryptography",
        f"bearer of {word} news", f"https://{word}.com/reset-password?id={n(99)}",
        "mot de passe oublié ?", "密码错误，请重试", f"password_field = driver.find({word})", "sk-learn-contrib",
        f"pk_live_{word}", "token_type: Bearer", "secretary general", f"v{n(9)}.{n(9)}.{n(9)}+{token(7, HEX)}"))


def _nino() -> str:
    return letters(2) + digits(6) + r.choice("ABCD")


def _steuer() -> str:
    pool = r.sample(string.digits, 10)
    twice, left = r.sample(range(10), 2)
    pool[left] = pool[twice]
    text = "".join(pool)
    from stdnum.iso7064 import mod_11_10
    return text + mod_11_10.calc_check_digit(text)


def _nir() -> str:
    number = r.choice("12") + digits(2) + f"{r.randrange(1, 13):02}" + f"{r.randrange(1, 96):02}" + digits(6)
    return number + f"{97 - int(number) % 97:02}"


def _near_check(make: Callable[[], str], judge: Callable[[str], bool]) -> Callable[[], str]:
    """A valid number with one character changed, so that the judge refuses it."""
    def near() -> str:
        while True:
            text = make()
            place = r.randrange(len(text))
            alphabet = string.digits if text[place].isdecimal() else string.ascii_uppercase
            changed = text[:place] + r.choice(alphabet) + text[place + 1:]
            if changed != text and not judge(changed):
                return changed
    return near


def _cf() -> str:
    from stdnum.it import codicefiscale
    consonants = "BCDFGLMNPRSTV"
    text = letters(6,
                   consonants) + digits(2) + r.choice("ABCDEHLMPRST") + (
        f"{r.choice((0, 40)) + r.randrange(1, 29):02}" + r.choice("ABCDEFGHL") + digits(3))
    return text + codicefiscale.calc_check_digit(text)


def _dni() -> str:
    from stdnum.es import dni, nie
    if r.random() < 0.7:
        number = digits(8)
        return number + dni.calc_check_digit(number)
    number = r.choice("XYZ") + digits(7)
    return number + nie.calc_check_digit(number)


def _aadhaar() -> str:
    from stdnum import verhoeff
    number = digits(11, "23456789")
    return number + verhoeff.calc_check_digit(number)


def _cpf() -> str:
    from stdnum.br import cpf
    number = digits(9)
    return number + cpf._calc_check_digits(number)


def _cnpj() -> str:
    from stdnum.br import cnpj
    number = digits(8) + "000" + digits(1, "123456789")
    return number + cnpj.calc_check_digits(number)


def _resident() -> str:
    return until(_resident_any, valid("cn.ric"))


def _resident_any() -> str:
    from stdnum.cn import ric
    number = r.choice(("110101", "310104", "440305", "510104", "320106",
                       "330102")) + (
        f"{r.randrange(1940, 2010)}{r.randrange(1, 13):02}{r.randrange(1, 29):02}" + digits(3))
    return number + ric.calc_check_digit(number + "0")


def _nhs() -> str:
    return until(lambda: digits(10, "4679"), valid("gb.nhs"))


def _ssn() -> str:
    return until(lambda: digits(9, "12345678"), valid("us.ssn"))


def _itin() -> str:
    return until(lambda: "9" + digits(2) + str(r.choice((*range(50, 66), *range(70, 89), 90, 91, 92, *range(94,
                                                            100)))) + digits(4), valid("us.itin"))


NATIONAL = {  # maker of valid ones, the judge, shapes of valid ones
    "us-ssn": (_ssn, lambda text: valid("us.ssn")(text) or text.startswith("9"), ("3-2-4", "3-2-4", "3 2 4", "9")),
    "us-itin": (_itin, lambda t: t[0] == "9" and int(t[3:5]) not in (*range(50), *range(66, 70), 89, 93), ("3-2-4",
                                                            "3-2-4", "3 2 4", "9")),
    "uk-nino": (lambda: until(_nino, lambda t: t[0] not in "DFIQUV" and t[1] not in "DFIOQUV" and t[:2] not in ("BG",
                                                            "GB", "KN", "NK", "NT", "TN", "ZZ")),
                lambda t: t[0] not in "DFIQUV" and t[1] not in "DFIOQUV" and t[:2] not in ("BG", "GB", "KN", "NK",
                                                            "NT", "TN", "ZZ") and t[-1] in "ABCD",
                ("9", "2 2 2 2 1", "2 6 1", "2-2-2-2-1")),
    "uk-nhs": (_nhs, valid("gb.nhs"), ("3 3 4", "3 3 4", "3-3-4", "10")),
    "de-steuer-id": (_steuer, valid("de.idnr"), ("11", "2 3 3 3", "2 3 3 3")),
    "fr-nir": (_nir, valid("fr.nir"), ("15", "1 2 2 2 3 3 2", "13 2")),
    "it-codice-fiscale": (_cf, lambda t: valid("it.codicefiscale")(t), ("16", "16", "3 3 5 5")),
    "es-dni": (_dni, lambda t: valid("es.dni")(t) or valid("es.nie")(t), ("9", "9", "8-1", "8 1")),
    "in-aadhaar": (_aadhaar, valid("in_.aadhaar"), ("4 4 4", "4 4 4", "4-4-4", "12")),
    "in-pan": (lambda: letters(3) + r.choice("PCHABGJLFT") + letters(1) + until(lambda: digits(4),
                                                            lambda t: t != "0000") + letters(1), valid("in_.pan"),
                                                            ("10", "10", "5 4 1")),
    "br-cpf": (_cpf, valid("br.cpf"), ("3.3.3-2", "3.3.3-2", "11")),
    "br-cnpj": (_cnpj, valid("br.cnpj"), ("2.3.3/4-2", "2.3.3/4-2", "14")),
    "cn-resident-id": (_resident, valid("cn.ric"), ("18", "18", "6 8 4")),
}


def general() -> str:
    """Something that has digits, and is nothing of what is looked for."""
    n = r.randrange
    return r.choice((
        f"{n(9)}.{n(99)}.{n(999)}", f"{n(2020, 2027)}-{n(1, 13):02}-{n(1, 29):02}",
        f"{n(24):02}:{n(60):02}:{n(60):02}",
        f"{n(2020, 2027)}-{n(1, 13):02}-{n(1, 29):02}T{n(24):02}:{n(60):02}:{n(60):02}Z",
        f"978-{n(9)}-{n(10, 99)}-{n(100000, 999999)}-{n(9)}", f"978{digits(10)}", token(40, HEX), token(7, HEX),
        f"{token(8, HEX)}-{token(4, HEX)}-{token(4, HEX)}-{token(4, HEX)}-{token(12, HEX)}",
        f"3.{digits(15)}", f"0.{digits(16)}", f"{n(1000)},{n(1000):03},{n(1000):03}", f"ORD-{digits(8)}",
        f"INV-{n(2020, 2027)}-{digits(5)}", f"#{digits(6)}", f"{n(99)}°{n(60)}'{n(60)}\"",
        f"{n(90)}.{digits(6)}, {n(180)}.{digits(6)}",
        f"17{digits(8)}", f"17{digits(11)}", f"1Z{letters(6)}{digits(10)}", f"SKU{digits(6)}", f"0x{token(8, HEX)}",
        f"{n(10**6)}/{n(10**6)}", f"{n(99)}x{n(99)}x{n(99)}", f"${n(1000)}.{n(99):02}", f"{n(99)}%",
        f"v{n(9)}.{n(9)}.{n(99)}-rc{n(9)}",
        f"[{n(99)}, {n(99)}, {n(99)}, {n(99)}]", f"{digits(4)}-{digits(4)}", f"{digits(5)}",
        f"AB-{digits(4)}-{letters(2)}", f"{n(1, 9)}e-{n(1, 9)}", f"{digits(20)}", f"{digits(3)} {digits(3)}",
        f"range({n(10**9)})", f"{digits(8)}"))


SPELLINGS = (
    lambda text: "".join(chr(ord(each) + 0xFEE0) if "!" <= each <= "~" else each for each in text),
    lambda text: "".join(chr(0x660 + int(each)) if each in string.digits else each for each in text),
    lambda text: "".join(chr(0x966 + int(each)) if each in string.digits else each for each in text),
    lambda text: "\u200b".join(text), lambda text: text[:3] + "\u200d\ufeff" + text[3:],
    lambda text: text.replace("-", "\u2011").replace(" ", "\u00a0"))


def spelled(text: str) -> str:
    """A value, one in ten times in another spelling."""
    return r.choice(SPELLINGS)(text) if r.random() < 0.1 else text


def sentence(frames: tuple[tuple[str, ...], ...], language: int, value: str, noun: str = "") -> tuple[str,
                                                            list[tuple[int, int]]]:
    """A sentence with a value, and where the value stands in it."""
    frame = r.choice(frames[language]).replace("{n}", noun)
    out, spans = "", []
    for place, part in enumerate(frame.split("{v}")):
        if place:
            spans.append((len(out), len(out) + len(value)))
            out += value
        out += part
    return out, spans


def positive(kind: str, language: int) -> tuple[str, list[tuple[int, int]]]:
    noun = NOUNS[kind][language]
    if kind == "secret":
        value, text = secret_good()
        place = text.index(value)
        return text, [(place, place + len(value))]
    if kind == "date-of-birth":
        return sentence(BORN, language, date(language))
    value = {"email": email_good, "phone": phone_good, "credit-card": lambda: card(good=True),
             "iban": lambda: iban(good=True), "ip-address": ip_good}.get(
        kind, lambda: grouped_valid(kind))()
    value = spelled(value)
    if kind == "email" and language == 7 and value.isascii():
        return sentence(FRAMES, language, value, noun)
    return sentence(FRAMES, language, f" {value} " if kind == "email" and language == 7 else value, noun)


def grouped_valid(kind: str) -> str:
    make, _judge, shapes = NATIONAL[kind]
    return grouped(make(), *shapes)


def near(kind: str, language: int) -> str:
    choice = r.random()
    if kind == "date-of-birth":
        return sentence(DATED if choice < 0.6 else BORN, language, date(language,
                                                            good=choice < 0.6) if choice < 0.8 else general_short())[0]
    own = {"email": email_near, "credit-card": lambda: card(good=False), "iban": lambda: iban(good=False),
           "ip-address": ip_near, "secret": secret_near}
    if choice < 0.5 and kind in own:
        frames = OTHERS if kind == "ip-address" else FRAMES
        value = own[kind]()
        return value if kind == "secret" else sentence(frames, language, value, NOUNS[kind][language])[0]
    if choice < 0.5 and kind in NATIONAL:
        make, judge, shapes = NATIONAL[kind]
        return sentence(FRAMES, language, grouped(_near_check(make, judge)(), *shapes), NOUNS[kind][language])[0]
    return sentence(OTHERS, language, general())[0]


def general_short() -> str:
    return r.choice((digits(5), digits(3), f"{digits(1)}.{digits(2)}", "MMXX"))


def rows() -> list[dict[str, object]]:
    """All sentences: text, kind, and the places of what must be found."""
    found: list[dict[str, object]] = []
    for kind in NOUNS:
        for number in range(POSITIVES):
            text, spans = positive(kind, number % 8)
            found.append({"kind": kind, "language": LANGUAGES[number % 8], "text": text, "spans": spans})
        found += [{"kind": kind, "language": LANGUAGES[number % 8], "text": near(kind, number % 8),
                   "spans": []} for number in range(NEAR)]
    return found


if __name__ == "__main__":
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows())
    OUT.write_bytes(gzip.compress(lines.encode(), 9, mtime=0))
