# completions of `appliance` for bash; made by: appliance completions bash
_appliance() {
  local current=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} path="" word options="" files=""
  for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
    case $word in
      @WORDS@) _appliance_known "$path $word" && path="$path $word" ;;
    esac
  done
  _appliance_options "$path"
  _appliance_values "$path" "$before"
  if [[ $values == FOLDER ]]; then
    COMPREPLY=($(compgen -d -- "$current"))
  elif [[ $values == FILE ]]; then
    COMPREPLY=($(compgen -f -- "$current"))
  elif [[ -n $values ]]; then
    COMPREPLY=($(compgen -W "$values" -- "$current"))
  elif [[ $current == -* || -z $files ]]; then
    COMPREPLY=($(compgen -W "$options" -- "$current"))
  else
    COMPREPLY=($(compgen -f -- "$current"))
  fi
}
_appliance_known() { _appliance_options "$1"; [[ -n $options ]]; }
_appliance_options() {
  options="" files=""
  case $1 in
@CASES@
  esac
}
_appliance_values() {
  values=""
  case "$1 $2" in
@VALUES@
  esac
}
complete -o filenames -F _appliance appliance
